"""A client's head is fine-tuned: activations of the frozen blocks in front of it, in one exchange or two."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from ..shared.arrays import config_of, record_of
from .instruction import Instruction
from .labels import LabelTerms, numbers_of, numbers_record
from .split_names import (
    ACTIVATIONS,
    CLIENT_BLOCK,
    CUT,
    FEATURES,
    LEARNING_RATE,
    NUM_STEPS,
    SPLIT_FEATURES,
    SPLIT_HEAD,
    TAIL,
)
from .split_records import batches_of, batches_record, batches_with_lengths, lengths_of_batches, metrics_of
from .train import CONFIG, METRICS, NUM_EXAMPLES


@dataclass(frozen=True)
class SplitFeatures(Instruction, message_type=SPLIT_FEATURES):
    """Ask for the `Features` of mini-batches to fine-tune a head with.

    Parameters
    ----------
    block : ArrayRecord
        Weights in front of the cut, which stay as they are.
    cut : int
        Number of blocks at the client.
    num_steps : int
        How many mini-batches.
    labels : LabelTerms
        How the edge learns labels.
    """

    block: ArrayRecord
    cut: int
    num_steps: int
    labels: LabelTerms

    def to_content(self) -> RecordDict:
        """Return the records."""
        config = {CUT: self.cut, NUM_STEPS: self.num_steps, **self.labels.to_config()}
        return RecordDict({CLIENT_BLOCK: self.block, CONFIG: ConfigRecord(config)})

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read the records."""
        config: Mapping[str, Any] = config_of(content, CONFIG)
        block, labels = record_of(content, CLIENT_BLOCK), LabelTerms.from_config(config)
        return cls(block, int(config[CUT]), int(config[NUM_STEPS]), labels)


@dataclass(frozen=True)
class Features:
    """Activations of several mini-batches in one reply, and what tells their labels; fields as of `Activations`."""

    values: Sequence[Tensor]
    label_policy: str
    numbers: np.ndarray | None
    num_examples: int
    lengths: Sequence[Tensor] = ()

    def to_content(self) -> RecordDict:
        """Return the records."""
        return RecordDict(
            {
                ACTIVATIONS: batches_record(self.values),
                METRICS: MetricRecord({NUM_EXAMPLES: self.num_examples}),
                **numbers_record(self.label_policy, self.numbers),
                **lengths_of_batches(self.lengths),
            }
        )

    @classmethod
    def from_content(cls, content: RecordDict, *, label_policy: str) -> Self:
        """Read the records that a client sent; ValueError if they are not features."""
        values = batches_of(content, ACTIVATIONS)
        numbers, count = numbers_of(content, label_policy), metrics_of(content).get(NUM_EXAMPLES, 0)
        return cls(values, label_policy, numbers, count, batches_with_lengths(content))  # type: ignore[arg-type]


@dataclass(frozen=True)
class SplitHead(Instruction, message_type=SPLIT_HEAD, goes_on=True):
    """Let a client fine-tune a head that stays with it, on the mini-batches whose activations it sent as `Features`.

    The reply holds nothing.

    Parameters
    ----------
    block : ArrayRecord
        Weights of the client's last blocks, which stay as they are, but for the head's, from which it starts.
    tail : int
        Blocks from this one on are the client's.
    features : Sequence[Tensor]
        What the edge's blocks made of the activations of each mini-batch.
    learning_rate : float
        Of an SGD step on each mini-batch.
    """

    block: ArrayRecord
    tail: int
    features: Sequence[Tensor]
    learning_rate: float

    def to_content(self) -> RecordDict:
        """Return the records."""
        config = ConfigRecord({TAIL: self.tail, LEARNING_RATE: self.learning_rate})
        return RecordDict({CLIENT_BLOCK: self.block, FEATURES: batches_record(self.features), CONFIG: config})

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read the records."""
        config: Mapping[str, Any] = config_of(content, CONFIG)
        block, features = record_of(content, CLIENT_BLOCK), batches_of(content, FEATURES)
        return cls(block, int(config[TAIL]), features, float(config[LEARNING_RATE]))
