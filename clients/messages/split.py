"""Split training. A round of S mini-batches is S + 1 exchanges: begin, S - 1 steps and end. By stream or lane: one.

Where the client has the model's last blocks too (U-shaped), each step has a tail in front: 2 S + 1 exchanges.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Self

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, ConfigRecordValues, MetricRecord, RecordDict
from torch import Tensor

from ..shared.arrays import array_of, config_of, count_of, record_of, to_array, to_tensor
from ..shared.records import records_in
from ..shared.tensor_array import record_by_reference
from ..shared.text import quoted
from .frames import StreamTicket
from .instruction import Instruction
from .labels import LabelTerms, lengths_of, lengths_record, numbers_of, numbers_record
from .split_names import (
    ACTIVATIONS,
    CLIENT_BLOCK,
    CUT,
    CUT_GRADIENT,
    FEATURE_GRADIENT,
    FEATURES,
    FROZEN_HEAD,
    KEPT,
    LABEL_POLICY,
    NUM_STEPS,
    SPLIT_BEGIN,
    SPLIT_END,
    SPLIT_FUSED,
    SPLIT_STEP,
    SPLIT_STREAM,
    SPLIT_TAIL,
    STEP,
    STREAM_PARTS,
    STREAM_PAYLOAD,
    STREAM_TIMEOUT,
    TAIL,
)
from .split_records import metrics_of
from .train import CLIENT_HALF, CONFIG, EDGE_HALF, METRICS, NUM_EXAMPLES, SERVER_ROUND, TRAIN_LOSS


@dataclass(frozen=True)
class SplitBegin(Instruction, message_type=SPLIT_BEGIN, begins_round=True):
    """Begin a round: the reply is the first mini-batch's `Activations`.

    Parameters
    ----------
    block : ArrayRecord
        Weights of the client's blocks.
    server_round : int
        Selects the mini-batches.
    cut : int
        Number of blocks at the client, in front of the server's.
    labels : LabelTerms
        How the edge learns labels.
    config : Mapping[str, ...] (default: none)
        What is sent along, such as a plan.
    tail : int, optional (default: None)
        Blocks from this one on are the client's, too. None: it has no tail.
    frozen_head : bool (default: False)
        The last block, in the client's tail, keeps its weights, and is not part of the result.
    sent : ArrayRecord, optional (default: None)
        What the edge's half of the algorithm sends beside the blocks.
    """

    block: ArrayRecord
    server_round: int
    cut: int
    labels: LabelTerms
    config: Mapping[str, ConfigRecordValues] = field(default_factory=dict)
    tail: int | None = None
    frozen_head: bool = False
    sent: ArrayRecord | None = None

    def to_content(self) -> RecordDict:
        """Return the records."""
        own = {SERVER_ROUND: self.server_round, CUT: self.cut, **self.labels.to_config()}
        own |= {} if self.tail is None else {TAIL: self.tail}
        own |= {FROZEN_HEAD: True} if self.frozen_head else {}
        beside = {} if self.sent is None else {EDGE_HALF: self.sent}
        return RecordDict({CLIENT_BLOCK: self.block.copy(), CONFIG: ConfigRecord({**self.config, **own}), **beside})

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read the records."""
        config: Mapping[str, Any] = config_of(content, CONFIG)
        block, labels = record_of(content, CLIENT_BLOCK), LabelTerms.from_config(config)
        tail, frozen = config.get(TAIL), bool(config.get(FROZEN_HEAD, False))
        sent = records_in(content, ArrayRecord).get(EDGE_HALF)
        return cls(block, int(config[SERVER_ROUND]), int(config[CUT]), labels, config, tail, frozen, sent)


@dataclass(frozen=True)
class SplitStream(Instruction, message_type=SPLIT_STREAM, begins_round=True, ends_round=True):
    """Train for a round whose mini-batches go through a stream (`espalier.clients.messages.frames`).

    The reply is a `SplitResult`, or the error `STREAM_WITHDRAWN`.

    Parameters
    ----------
    begin : SplitBegin
        What begins a round by messages.
    ticket : StreamTicket
        Opens the stream.
    payload : str
        How tensors are written, see `Format`.
    timeout_seconds : float
        How long the client waits for an answer.
    parts : int (default: 1)
        Parts of each mini-batch, which go one after the other without a wait; at most one for each example.
    """

    begin: SplitBegin
    ticket: StreamTicket
    payload: str
    timeout_seconds: float
    parts: int = 1

    def to_content(self) -> RecordDict:
        """Return the records."""
        content = self.begin.to_content()
        own: dict[str, ConfigRecordValues] = {STREAM_PAYLOAD: self.payload, STREAM_TIMEOUT: self.timeout_seconds}
        own |= {STREAM_PARTS: self.parts} if self.parts > 1 else {}
        own |= self.ticket.to_config()
        return RecordDict({**content, CONFIG: ConfigRecord({**config_of(content, CONFIG), **own})})

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read the records; ValueError without a ticket."""
        begin = SplitBegin.from_content(content)
        config: Mapping[str, Any] = begin.config
        if (ticket := StreamTicket.from_config(config)) is None:
            raise ValueError("no ticket for a stream")
        payload, timeout_seconds = str(config[STREAM_PAYLOAD]), float(config[STREAM_TIMEOUT])
        return cls(begin, ticket, payload, timeout_seconds, int(config.get(STREAM_PARTS, 1)))


@dataclass(frozen=True)
class SplitFused(SplitBegin, message_type=SPLIT_FUSED, begins_round=True, ends_round=True):
    """Train for a round whose mini-batches go through a lane (`espalier.clients.shared.lanes`), in one process.

    The reply is a `SplitResult`. The records are those of `SplitBegin`.
    """


@dataclass(frozen=True)
class SplitTail(Instruction, message_type=SPLIT_TAIL, goes_on=True):
    """Bring what the server's blocks make of a mini-batch: the reply is the loss's `FeatureGradient`."""

    server_round: int
    step: int
    features: Tensor

    @property
    def label_policy(self) -> str:
        """What goes with activations: nothing."""
        return KEPT

    def to_content(self) -> RecordDict:
        """Return the records."""
        features = record_by_reference({FEATURES: to_array(self.features)})
        return RecordDict({FEATURES: features, CONFIG: _step_config(self.server_round, self.step, KEPT).copy()})

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read the records; ValueError if there are no features."""
        config: Mapping[str, Any] = config_of(content, CONFIG)
        return cls(int(config[SERVER_ROUND]), int(config[STEP]), to_tensor(array_of(content, FEATURES)))


@dataclass(frozen=True)
class FeatureGradient:
    """The gradient of a mini-batch's mean loss with respect to its features; shape as theirs."""

    values: Tensor
    step: int

    def to_content(self) -> RecordDict:
        """Return the records."""
        gradient = record_by_reference({FEATURE_GRADIENT: to_array(self.values)})
        return RecordDict({FEATURE_GRADIENT: gradient, METRICS: MetricRecord({STEP: self.step})})

    @classmethod
    def from_content(cls, content: RecordDict, *, step: int) -> Self:
        """Read the records that a client sent; ValueError for what is not the gradient of `step`."""
        _check_step(metrics_of(content), step)
        return cls(to_tensor(array_of(content, FEATURE_GRADIENT)), step)


@dataclass(frozen=True)
class SplitStep(Instruction, message_type=SPLIT_STEP, goes_on=True):
    """Bring the cut gradient of a mini-batch: the reply is the next one's `Activations`."""

    server_round: int
    step: int
    label_policy: str
    gradient: Tensor

    def to_content(self) -> RecordDict:
        """Return the records."""
        config = _step_config(self.server_round, self.step, self.label_policy)
        gradient = record_by_reference({CUT_GRADIENT: to_array(self.gradient)})
        return RecordDict({CUT_GRADIENT: gradient, CONFIG: config.copy()})

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read the records; ValueError if there is no gradient."""
        config: Mapping[str, Any] = config_of(content, CONFIG)
        gradient = to_tensor(array_of(content, CUT_GRADIENT))
        return cls(int(config[SERVER_ROUND]), int(config[STEP]), str(config[LABEL_POLICY]), gradient)


@dataclass(frozen=True)
class SplitEnd(SplitStep, message_type=SPLIT_END, ends_round=True, goes_on=True):
    """Bring the last cut gradient: the reply is a `SplitResult`."""


@dataclass(frozen=True)
class Activations:
    """A mini-batch's activations, and what tells their labels.

    Parameters
    ----------
    values : Tensor
        Shape (N, *cut_shape).
    label_policy : "indices", "labels" or "kept"
        What the numbers are.
    numbers : np.ndarray, optional
        Sample indices, shape (N,), or labels, (N, ...): int32, int64 where they were read. None where labels are kept.
    step : int
        Number of the mini-batch, from 0.
    num_steps : int
        Mini-batches of the round.
    num_examples : int
        Training examples of the client.
    lengths : np.ndarray, optional (default: None)
        Shape (N,), of the same types: how much of each sample's activations, (T, ...), counts, where blocks pass that
        on.
    """

    values: Tensor
    label_policy: str
    numbers: np.ndarray | None
    step: int
    num_steps: int
    num_examples: int
    lengths: np.ndarray | None = None

    def to_content(self) -> RecordDict:
        """Return the records."""
        return RecordDict(
            {
                ACTIVATIONS: record_by_reference({ACTIVATIONS: to_array(self.values)}),
                METRICS: _step_metrics(self.step, self.num_steps, self.num_examples).copy(),
                **numbers_record(self.label_policy, self.numbers),
                **lengths_record(self.lengths),
            }
        )

    @classmethod
    def from_content(cls, content: RecordDict, *, step: int, label_policy: str) -> Self:
        """Read the records that a client sent; ValueError for what is not a mini-batch of `step`."""
        metrics = metrics_of(content)
        num_steps = count_of(metrics, NUM_STEPS, least=1)
        _check_step(metrics, step)
        values, numbers = to_tensor(array_of(content, ACTIVATIONS)), numbers_of(content, label_policy)
        count: int = metrics.get(NUM_EXAMPLES, 0)  # type: ignore[assignment]
        return cls(values, label_policy, numbers, step, num_steps, count, lengths_of(content))


@dataclass(frozen=True)
class SplitResult:
    """A client's result of a round.

    Parameters
    ----------
    block : ArrayRecord
        The trained weights of the client's blocks; nothing is known of them before they are compared to those sent.
    num_examples : int
        Training examples of the client.
    step : int
        Number of its last mini-batch.
    train_loss : float, optional (default: None)
        The mean over the examples seen, from a client that computes the loss.
    told : ArrayRecord, optional (default: None)
        What the edge's half of the algorithm is told.
    """

    block: ArrayRecord
    num_examples: int
    step: int
    train_loss: float | None = None
    told: ArrayRecord | None = None

    @property
    def num_steps(self) -> int:
        """How many mini-batches it trained on; ValueError for what is no such number."""
        if not isinstance(self.step, int) or self.step < 0:
            raise ValueError(f"{STEP} is {quoted(self.step)}, expected a whole number from 0 on")
        return self.step + 1

    def to_content(self) -> RecordDict:
        """Return the records."""
        metrics = MetricRecord({NUM_EXAMPLES: self.num_examples, STEP: self.step})
        if self.train_loss is not None:
            metrics[TRAIN_LOSS] = self.train_loss
        beside = {} if self.told is None else {CLIENT_HALF: self.told}
        return RecordDict({CLIENT_BLOCK: self.block, METRICS: metrics, **beside})

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read the records that a client sent; ValueError if it is no result."""
        block, metrics = record_of(content, CLIENT_BLOCK), metrics_of(content)
        count, step, loss = count_of(metrics, NUM_EXAMPLES, least=1), metrics.get(STEP, 0), metrics.get(TRAIN_LOSS)
        return cls(block, count, step, loss, records_in(content, ArrayRecord).get(CLIENT_HALF))  # type: ignore[arg-type]


@lru_cache(maxsize=16)
def _step_config(server_round: int, step: int, label_policy: str) -> ConfigRecord:
    """Return what all clients are told in a step; to be copied."""
    return ConfigRecord({SERVER_ROUND: server_round, STEP: step, LABEL_POLICY: label_policy})


@lru_cache(maxsize=1024)
def _step_metrics(step: int, num_steps: int, num_examples: int) -> MetricRecord:
    """Return what a client says of a mini-batch, the same in every round; to be copied."""
    return MetricRecord({STEP: step, NUM_STEPS: num_steps, NUM_EXAMPLES: num_examples})


def _check_step(metrics: MetricRecord, step: int) -> None:
    if (answered := count_of(metrics, STEP)) != step:
        raise ValueError(f"it answered step {answered}, not step {step}")
