"""Records that several messages of split models hold."""

from collections.abc import Sequence

from flwr.app import ArrayRecord, MetricRecord, RecordDict
from torch import Tensor

from ..shared.arrays import record_of, to_array, to_tensor
from ..shared.tensor_array import record_by_reference
from .train import METRICS


def metrics_of(content: RecordDict) -> MetricRecord:
    """Return what a reply says of itself; ValueError where it says nothing."""
    if not isinstance(record := content.get(METRICS), MetricRecord):
        raise ValueError(f"its reply has no record {METRICS!r}")
    return record


def batches_record(batches: Sequence[Tensor]) -> ArrayRecord:
    """Return tensors as a record, in their order."""
    # In main memory: those of an edge's clients are there all at once, of a whole test set each.
    return record_by_reference({f"{i}": to_array(values.cpu()) for i, values in enumerate(batches)})


def batches_of(content: RecordDict, name: str) -> list[Tensor]:
    """Return the tensors that `batches_record` made a record of."""
    return [to_tensor(array) for array in record_of(content, name).values()]
