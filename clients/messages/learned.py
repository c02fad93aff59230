"""What a training starts from and what was learned in it, in messages of whole models and of blocks alike."""

from flwr.app import ArrayRecord, RecordDict

from ..shared.records import records_in
from .split_names import CLIENT_BLOCK
from .train import model_in_reply, only_arrays


def model_sent(content: RecordDict) -> ArrayRecord:
    """Return the model, or the blocks, that an instruction brings; ValueError if it is neither."""
    blocks = records_in(content, ArrayRecord).get(CLIENT_BLOCK)
    return only_arrays(content) if blocks is None else blocks


def learned_in(content: RecordDict) -> tuple[str, ArrayRecord]:
    """Return the name and the model, or the blocks, in a reply; ValueError if it is neither."""
    blocks = records_in(content, ArrayRecord).get(CLIENT_BLOCK)
    return model_in_reply(content) if blocks is None else (CLIENT_BLOCK, blocks)
