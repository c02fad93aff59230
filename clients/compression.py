"""What a client does to the model that it sends: its update is compressed, and what is left out is kept."""

from dataclasses import dataclass

from flwr.app import Context, Message, RecordDict

from .memory import keep, kept, start_of_round
from .messages.instruction import ends_round
from .messages.learned import learned_in
from .messages.train import SERVER_ROUND
from .randomness import client_generator
from .shared.compression import Codec, compressed
from .shared.compression.updates import COMPRESSED
from .shared.records import config_in
from .task import ClientTask

ERRORS = "compression-errors"  # a record of a node's state


@dataclass(frozen=True)
class CompressUpdates:
    """Compresses what was learned in a round, a model or blocks, in the reply that brings it; others stay as they are.

    Parameters
    ----------
    codec : Codec
        Writes updates.
    """

    codec: Codec

    def __call__(self, reply: Message, message: Message, context: Context, task: ClientTask) -> Message:
        """Return the reply as it travels; ValueError if the model is not of the form of the one that was sent."""
        start = start_of_round(message, context)
        if start is None or not ends_round(message.metadata.message_type) or reply.has_error():
            return reply
        name, model = learned_in(reply.content)
        draws = client_generator(task.seed, task.partition_id, _round_of(message), "compression")
        made = compressed(self.codec, model, start, kept(context, ERRORS), draws)
        if self.codec.keeps_errors:
            keep(context, made.errors, ERRORS)
        reply.content = RecordDict({**reply.content, name: made.beside, COMPRESSED: made.update})
        return reply


def _round_of(message: Message) -> int:
    return int(config_in(message.content).get(SERVER_ROUND, 0))  # type: ignore[arg-type]
