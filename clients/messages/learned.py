"""What a round of a client starts from and what was learned in it, in messages of whole models and of blocks alike."""

from flwr.app import ArrayRecord, Message, RecordDict

from ..shared.records import records_in
from .instruction import begins_round
from .split_names import CLIENT_BLOCK
from .train import TRAIN, model_in_reply, only_arrays


def begins_with_model(message: Message) -> bool:
    """Return whether a message begins a client's round with a model, or with blocks of one."""
    kind = message.metadata.message_type
    return begins_round(kind) and (kind == TRAIN or CLIENT_BLOCK in message.content)


def start_in(content: RecordDict) -> ArrayRecord:
    """Return the model, or the blocks, that an instruction brings; ValueError if it is neither."""
    blocks = records_in(content, ArrayRecord).get(CLIENT_BLOCK)
    return only_arrays(content) if blocks is None else blocks


def learned_in(content: RecordDict) -> tuple[str, ArrayRecord]:
    """Return the name and the model, or the blocks, in a reply; ValueError if it is neither."""
    blocks = records_in(content, ArrayRecord).get(CLIENT_BLOCK)
    return model_in_reply(content) if blocks is None else (CLIENT_BLOCK, blocks)
