"""A ClientApp answers a message, as in a process of its own: what it fails on becomes an error reply."""

from collections.abc import Callable, Mapping
from logging import getLogger
from typing import Any

from flwr.app import Context, Message, RecordDict, UserConfig
from flwr.clientapp import ClientApp

from .flower_private import PARTITION_ID_KEY, copy_message, copy_records, handed_over, raised

logger = getLogger("espalier")

FAULTS = (Exception, SystemExit, GeneratorExit)  # of a ClientApp: a library under it may end the program
AnyClientApp = ClientApp | Callable[[Message, Context], Message]


def context_of(message: Message, node_config: UserConfig, state: RecordDict, run_config: Mapping[str, Any]) -> Context:
    """Return the context in which a node answers a message."""
    return Context(
        run_id=message.metadata.run_id,
        node_id=message.metadata.dst_node_id,
        node_config=dict(node_config),
        state=state,
        run_config=dict(run_config),
    )


def answer(client_app: AnyClientApp, message: Message, context: Context) -> tuple[Message, RecordDict | None]:
    """Let a ClientApp answer a message.

    Parameters
    ----------
    client_app : ClientApp | Callable[[Message, Context], Message]
        What the node runs.
    message : Message
        Gives its content away; its metadata stay the grid's.
    context : Context
        The ClientApp's own.

    Returns
    -------
    tuple[Message, RecordDict or None]
        The reply, and the state that it leaves the node in. The reply to a message on which the ClientApp fails is an
        error reply, and there is no new state.
    """
    metadata, run_config = message.metadata, dict(context.run_config)
    try:
        reply = client_app(handed_over(message), context)
        _check_reply(reply, metadata.message_id)
        if context.run_config != run_config:
            raise ValueError("a ClientApp can't change context.run_config")
        return copy_message(reply), copy_records(context.state)
    except FAULTS as error:
        partition_id = context.node_config.get(PARTITION_ID_KEY)
        logger.debug("partition %s failed on %r", partition_id, metadata.message_type, exc_info=True)
        return raised(message, error), None


def _check_reply(reply: object, message_id: str) -> None:
    """Raise unless `reply` is a reply to the message: Flower would drop it, and the server wait in vain."""
    if not isinstance(reply, Message):
        raise TypeError(f"a ClientApp must return a Message, not {type(reply).__name__}")
    if reply.metadata.reply_to_message_id != message_id:
        raise ValueError("a ClientApp must reply to the message it was given: Message(..., reply_to=message)")
