"""Clipping by clients, where one of Flower's differential privacy strategies tells them to."""

from collections.abc import Callable

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod

from ..messages.train import CLIPPING_NORM, WANTS_NORM_BIT
from ..shared.records import records_in


def is_told_to_clip(message: Message) -> bool:
    """Return whether an instruction has a bound for the update's length."""
    return any(CLIPPING_NORM in record for record in records_in(message.content, ConfigRecord).values())


def clip_as_told(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Answer an instruction to train; clip the update by Flower's mod where the instruction says so.

    The bits of other answers stay. Flower's mods can't clip integers, such as BatchNorm's counters, and divide by the
    length of the update, so a model with such, or a client that learns nothing, is answered with an error.
    """
    if not is_told_to_clip(message):
        return call_next(message, context)
    (told,) = records_in(message.content, ConfigRecord).values()
    mod = adaptiveclipping_mod if told.get(WANTS_NORM_BIT) else fixedclipping_mod
    return mod(message, context, call_next)
