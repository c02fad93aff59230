"""How the edge learns the labels of mini-batches."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecordValues, MetricRecord, RecordDict

from ..shared.arrays import count_of, integers_of, to_vector, vector_of
from ..shared.tensor_array import record_by_reference
from .instruction import Instruction
from .split_names import INDICES, KEPT, LABEL_POLICY, LABELS, LABELS_DIGEST, LENGTHS, QUERY_LABELS
from .split_records import metrics_of
from .train import METRICS

IGNORED = -100  # the label that PyTorch's cross-entropy leaves out


@dataclass(frozen=True)
class LabelTerms:
    """How the edge learns labels.

    Parameters
    ----------
    policy : "indices", "labels" or "kept"
        What goes with activations: sample indices, where the labels have been registered; the labels; or neither, where
        the client computes the loss.
    digest : int, optional (default: None)
        What the client sent along with the labels that the edge goes by, with the policy ``"indices"``.
    """

    policy: str
    digest: int | None = None

    def to_config(self) -> dict[str, ConfigRecordValues]:
        """Return the keys of a config record."""
        return {LABEL_POLICY: self.policy, **({} if self.digest is None else {LABELS_DIGEST: self.digest})}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Read what `to_config` wrote."""
        return cls(str(config[LABEL_POLICY]), config.get(LABELS_DIGEST))


@dataclass(frozen=True)
class LabelsQuery(Instruction, message_type=QUERY_LABELS):
    """Ask a client to register its labels."""

    def to_content(self) -> RecordDict:
        """Return the records: none."""
        return RecordDict()


@dataclass(frozen=True)
class RegisteredLabels:
    """The labels of all of a client's training examples.

    Parameters
    ----------
    labels : np.ndarray
        Shape (N, ...), in the order of the examples: int32, int64 where they were read.
    digest : int
        Tells these labels from others, to the client alone.
    """

    labels: np.ndarray
    digest: int

    def to_content(self) -> RecordDict:
        """Return the records."""
        metrics = MetricRecord({LABELS_DIGEST: self.digest})
        return RecordDict({LABELS: ArrayRecord({LABELS: Array(self.labels)}), METRICS: metrics})

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read the records that a client sent; ValueError if there are no labels."""
        return cls(integers_of(content, LABELS), count_of(metrics_of(content), LABELS_DIGEST))


def numbers_record(label_policy: str, numbers: np.ndarray | None) -> dict[str, ArrayRecord]:
    """Return the record of what tells the labels of a mini-batch; none where labels are kept."""
    return {} if numbers is None else {label_policy: record_by_reference({label_policy: to_vector(numbers)})}


def numbers_of(content: RecordDict, label_policy: str) -> np.ndarray | None:
    """Return what tells the labels of a mini-batch; None where labels are kept."""
    if label_policy == KEPT:
        return None
    return vector_of(content, INDICES) if label_policy == INDICES else integers_of(content, label_policy)


def lengths_record(lengths: np.ndarray | None) -> dict[str, ArrayRecord]:
    """Return the record of the lengths of sequences; none where there are none."""
    return {} if lengths is None else {LENGTHS: record_by_reference({LENGTHS: to_vector(lengths)})}


def lengths_of(content: RecordDict) -> np.ndarray | None:
    """Return the lengths of sequences; None where there are none."""
    return vector_of(content, LENGTHS) if LENGTHS in content else None
