"""A Flower mod by which a node tells how long it computed."""

import time
from collections.abc import Callable

from flwr.app import Context, Message

from .messages.seconds import ToldSeconds


def tell_seconds(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Answer a message, and tell in the reply how long that took, without the waits that the handler tells itself."""
    started = time.perf_counter()
    reply = call_next(message, context)
    told = ToldSeconds.of(reply)
    ToldSeconds(computing=max(time.perf_counter() - started - told.waiting - told.moving, 0.0)).add_to(reply)
    return reply
