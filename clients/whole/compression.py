"""What a client does to the model that it sends: its update is compressed, and what is left out is kept."""

from dataclasses import dataclass

from flwr.app import Context, Message, RecordDict

from ..memory import keep, kept
from ..messages.train import TRAIN, Train, model_in_reply
from ..randomness import client_generator
from ..shared.compression import Codec, compressed
from ..shared.compression.updates import COMPRESSED
from ..task import ClientTask

ERRORS = "compression-errors"  # a record of a node's state


@dataclass(frozen=True)
class CompressUpdates:
    """Compresses the model in the reply to an instruction to train; other replies stay as they are.

    Parameters
    ----------
    codec : Codec
        Writes updates.
    """

    codec: Codec

    def __call__(self, reply: Message, message: Message, context: Context, task: ClientTask) -> Message:
        """Return the reply as it travels; ValueError if the model is not of the form of the one that was sent."""
        if message.metadata.message_type != TRAIN or reply.has_error():
            return reply
        instruction = Train.from_content(message.content)
        name, model = model_in_reply(reply.content)
        draws = client_generator(task.seed, task.partition_id, instruction.server_round, "compression")
        made = compressed(self.codec, model, instruction.arrays, kept(context, ERRORS), draws)
        if self.codec.keeps_errors:
            keep(context, made.errors, ERRORS)
        reply.content = RecordDict({**reply.content, name: made.beside, COMPRESSED: made.update})
        return reply
