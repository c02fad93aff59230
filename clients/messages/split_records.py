"""Records that several messages of split models hold."""

from collections.abc import Sequence

from flwr.app import ArrayRecord, MetricRecord, RecordDict
from torch import Tensor

from ..shared.arrays import record_of, to_array, to_tensor
from ..shared.tensor_array import record_by_reference
from .split_names import LENGTHS
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


def lengths_of_batches(batches: Sequence[Tensor]) -> dict[str, ArrayRecord]:
    """Return the record of the lengths of sequences in batches; none where there are none."""
    return {LENGTHS: batches_record(batches)} if batches else {}


def batches_with_lengths(content: RecordDict) -> list[Tensor]:
    """Return the lengths that `lengths_of_batches` made a record of; none where there is no record."""
    return batches_of(content, LENGTHS) if LENGTHS in content else []


def batches_of(content: RecordDict, name: str) -> list[Tensor]:
    """Return the tensors that `batches_record` made a record of."""
    return [to_tensor(array) for array in record_of(content, name).values()]
