"""A split model is evaluated in two exchanges: activations of the test set, then the server's outputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from ..shared.arrays import config_of, record_of
from .instruction import Instruction
from .split_names import (
    ACTIVATIONS,
    CLIENT_BLOCK,
    CUT,
    EVALUATE_FRONT,
    EVALUATE_OUTPUTS,
    FEATURES,
    OUTPUTS,
    OWN_HEAD,
    TAIL,
)
from .split_records import batches_of, batches_record, batches_with_lengths, lengths_of_batches
from .train import CONFIG


@dataclass(frozen=True)
class EvaluateFront(Instruction, message_type=EVALUATE_FRONT):
    """Ask for the `TestActivations` of a client's own test set.

    Parameters
    ----------
    block : ArrayRecord
        Weights in front of the cut.
    cut : int
        Number of blocks at the client, in front of the server's.
    """

    block: ArrayRecord
    cut: int

    def to_content(self) -> RecordDict:
        """Return the records."""
        return RecordDict({CLIENT_BLOCK: self.block, CONFIG: ConfigRecord({CUT: self.cut})})

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read the records."""
        config: Mapping[str, Any] = config_of(content, CONFIG)
        return cls(record_of(content, CLIENT_BLOCK), int(config[CUT]))


@dataclass(frozen=True)
class TestActivations:
    """The activations of a client's test set, in batches of shape (N, *cut_shape), and of each its lengths; no labels.

    There are lengths where blocks pass them on.
    """

    __test__ = False  # pytest looks for tests in what is called so
    values: Sequence[Tensor]
    lengths: Sequence[Tensor] = ()

    def to_content(self) -> RecordDict:
        """Return the records."""
        return RecordDict({ACTIVATIONS: batches_record(self.values), **lengths_of_batches(self.lengths)})

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read the records that a client sent; ValueError if they are no activations."""
        return cls(batches_of(content, ACTIVATIONS), batches_with_lengths(content))


@dataclass(frozen=True)
class EvaluateOutputs(Instruction, message_type=EVALUATE_OUTPUTS, goes_on=True):
    """Bring what the edge's blocks made of a client's test set; the reply is as to `Evaluate`.

    Parameters
    ----------
    outputs : Sequence[Tensor]
        By batch: the model's outputs, or for a client with a tail features.
    block : ArrayRecord, optional (default: None)
        Weights of the client's last blocks, where it has some; without the head's if it is to take its own.
    tail : int, optional (default: None)
        Blocks from this one on are the client's.
    own_head : bool (default: False)
        Evaluate with the head that the client fine-tuned, see `SplitHead`.
    """

    outputs: Sequence[Tensor]
    block: ArrayRecord | None = None
    tail: int | None = None
    own_head: bool = False

    def to_content(self) -> RecordDict:
        """Return the records."""
        if self.tail is None or self.block is None:
            return RecordDict({OUTPUTS: batches_record(self.outputs), CONFIG: ConfigRecord()})
        config = ConfigRecord({TAIL: self.tail, OWN_HEAD: self.own_head})
        return RecordDict({FEATURES: batches_record(self.outputs), CLIENT_BLOCK: self.block, CONFIG: config})

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read the records."""
        config: Mapping[str, Any] = config_of(content, CONFIG)
        if TAIL not in config:
            return cls(batches_of(content, OUTPUTS))
        block = record_of(content, CLIENT_BLOCK)
        return cls(batches_of(content, FEATURES), block, int(config[TAIL]), bool(config[OWN_HEAD]))
