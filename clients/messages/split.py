"""Split training. A round of S mini-batches is S + 1 exchanges: begin, S - 1 steps and end. By stream or lane: one.

Where the client has the model's last blocks too (U-shaped), each step has a tail in front: 2 S + 1 exchanges.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Self

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, ConfigRecordValues, MetricRecord, RecordDict
from torch import Tensor

from .arrays import array_of, config_of, count_of, record_of, to_array, to_tensor, to_vector, vector_of
from .frames import StreamTicket
from .instruction import Instruction
from .tensor_array import record_by_reference
from .train import CONFIG, METRICS, NUM_EXAMPLES, SERVER_ROUND, TRAIN_LOSS

SPLIT_BEGIN: Final = "train.split_begin"
SPLIT_TAIL: Final = "train.split_tail"
SPLIT_STEP: Final = "train.split_step"
SPLIT_END: Final = "train.split_end"
SPLIT_STREAM: Final = "train.split_stream"
SPLIT_FUSED: Final = "train.split_fused"
SPLIT_FEATURES: Final = "train.split_features"
SPLIT_HEAD: Final = "train.split_head"
EVALUATE_FRONT: Final = "evaluate.split_front"
EVALUATE_OUTPUTS: Final = "evaluate.split_outputs"
QUERY_LABELS: Final = "query.labels"

# Records.
CLIENT_BLOCK: Final = "client-block"
ACTIVATIONS: Final = "activations"
FEATURES: Final = "features"
OUTPUTS: Final = "outputs"
FEATURE_GRADIENT: Final = "feature-gradient"
CUT_GRADIENT: Final = "cut-gradient"
INDICES: Final = "indices"
LABELS: Final = "labels"

# Keys.
CUT: Final = "cut"
TAIL: Final = "tail"
FROZEN_HEAD: Final = "frozen-head"
STEP: Final = "step"
NUM_STEPS: Final = "num-steps"
LEARNING_RATE: Final = "learning-rate"
OWN_HEAD: Final = "own-head"
LABEL_POLICY: Final = "label-policy"
LABELS_DIGEST: Final = "labels-digest"
STREAM_PAYLOAD: Final = "stream-payload"
STREAM_TIMEOUT: Final = "stream-timeout"

# A label policy: the client computes the loss, and no label leaves it.
KEPT: Final = "kept"

# A client refuses an instruction with this word where its labels are not those that it registered.
LABELS_CHANGED: Final = "labels-changed"
# Code of the error reply of a client whose stream the edge called off; other codes of this project are in
# `espalier.strategies.exchange`.
STREAM_WITHDRAWN: Final = 1101


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
    """

    block: ArrayRecord
    server_round: int
    cut: int
    labels: LabelTerms
    config: Mapping[str, ConfigRecordValues] = field(default_factory=dict)
    tail: int | None = None
    frozen_head: bool = False

    def to_content(self) -> RecordDict:
        """Return the records."""
        own = {SERVER_ROUND: self.server_round, CUT: self.cut, **self.labels.to_config()}
        own |= {} if self.tail is None else {TAIL: self.tail}
        own |= {FROZEN_HEAD: True} if self.frozen_head else {}
        return RecordDict({CLIENT_BLOCK: self.block.copy(), CONFIG: ConfigRecord({**self.config, **own})})

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read the records."""
        config: Mapping[str, Any] = config_of(content, CONFIG)
        block, labels = record_of(content, CLIENT_BLOCK), LabelTerms.from_config(config)
        tail, frozen = config.get(TAIL), bool(config.get(FROZEN_HEAD, False))
        return cls(block, int(config[SERVER_ROUND]), int(config[CUT]), labels, config, tail, frozen)


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
    """

    begin: SplitBegin
    ticket: StreamTicket
    payload: str
    timeout_seconds: float

    def to_content(self) -> RecordDict:
        """Return the records."""
        content = self.begin.to_content()
        own = {STREAM_PAYLOAD: self.payload, STREAM_TIMEOUT: self.timeout_seconds, **self.ticket.to_config()}
        return RecordDict({**content, CONFIG: ConfigRecord({**config_of(content, CONFIG), **own})})

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read the records; ValueError without a ticket."""
        begin = SplitBegin.from_content(content)
        config: Mapping[str, Any] = begin.config
        if (ticket := StreamTicket.from_config(config)) is None:
            raise ValueError("no ticket for a stream")
        return cls(begin, ticket, str(config[STREAM_PAYLOAD]), float(config[STREAM_TIMEOUT]))


@dataclass(frozen=True)
class SplitFused(SplitBegin, message_type=SPLIT_FUSED, begins_round=True, ends_round=True):
    """Train for a round whose mini-batches go through a lane (`espalier.clients.messages.lanes`), in one process.

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
        _check_step(_metrics(content), step)
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
        Shape (N,): sample indices or labels, int32, int64 where they were read. None where labels are kept.
    step : int
        Number of the mini-batch, from 0.
    num_steps : int
        Mini-batches of the round.
    num_examples : int
        Training examples of the client.
    """

    values: Tensor
    label_policy: str
    numbers: np.ndarray | None
    step: int
    num_steps: int
    num_examples: int

    def to_content(self) -> RecordDict:
        """Return the records."""
        return RecordDict(
            {
                ACTIVATIONS: record_by_reference({ACTIVATIONS: to_array(self.values)}),
                METRICS: _step_metrics(self.step, self.num_steps, self.num_examples).copy(),
                **_numbers_record(self.label_policy, self.numbers),
            }
        )

    @classmethod
    def from_content(cls, content: RecordDict, *, step: int, label_policy: str) -> Self:
        """Read the records that a client sent; ValueError for what is not a mini-batch of `step`."""
        metrics = _metrics(content)
        num_steps = count_of(metrics, NUM_STEPS, least=1)
        _check_step(metrics, step)
        values, numbers = to_tensor(array_of(content, ACTIVATIONS)), _numbers(content, label_policy)
        return cls(values, label_policy, numbers, step, num_steps, metrics.get(NUM_EXAMPLES, 0))  # type: ignore[arg-type]


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
    """

    block: ArrayRecord
    num_examples: int
    step: int
    train_loss: float | None = None

    def to_content(self) -> RecordDict:
        """Return the records."""
        metrics = MetricRecord({NUM_EXAMPLES: self.num_examples, STEP: self.step})
        if self.train_loss is not None:
            metrics[TRAIN_LOSS] = self.train_loss
        return RecordDict({CLIENT_BLOCK: self.block, METRICS: metrics})

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read the records that a client sent; ValueError if it is no result."""
        block, metrics = record_of(content, CLIENT_BLOCK), _metrics(content)
        count, step, loss = count_of(metrics, NUM_EXAMPLES, least=1), metrics.get(STEP, 0), metrics.get(TRAIN_LOSS)
        return cls(block, count, step, loss)  # type: ignore[arg-type]


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

    def to_content(self) -> RecordDict:
        """Return the records."""
        return RecordDict(
            {
                ACTIVATIONS: _batches_record(self.values),
                METRICS: MetricRecord({NUM_EXAMPLES: self.num_examples}),
                **_numbers_record(self.label_policy, self.numbers),
            }
        )

    @classmethod
    def from_content(cls, content: RecordDict, *, label_policy: str) -> Self:
        """Read the records that a client sent; ValueError if they are not features."""
        values = _batches(content, ACTIVATIONS)
        numbers, count = _numbers(content, label_policy), _metrics(content).get(NUM_EXAMPLES, 0)
        return cls(values, label_policy, numbers, count)  # type: ignore[arg-type]


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
        return RecordDict({CLIENT_BLOCK: self.block, FEATURES: _batches_record(self.features), CONFIG: config})

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read the records."""
        config: Mapping[str, Any] = config_of(content, CONFIG)
        block, features = record_of(content, CLIENT_BLOCK), _batches(content, FEATURES)
        return cls(block, int(config[TAIL]), features, float(config[LEARNING_RATE]))


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
    """The activations of a client's test set, in batches of shape (N, *cut_shape); no labels."""

    __test__ = False  # pytest looks for tests in what is called so
    values: Sequence[Tensor]

    def to_content(self) -> RecordDict:
        """Return the records."""
        return RecordDict({ACTIVATIONS: _batches_record(self.values)})

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read the records that a client sent; ValueError if they are no activations."""
        return cls(_batches(content, ACTIVATIONS))


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
            return RecordDict({OUTPUTS: _batches_record(self.outputs), CONFIG: ConfigRecord()})
        config = ConfigRecord({TAIL: self.tail, OWN_HEAD: self.own_head})
        return RecordDict({FEATURES: _batches_record(self.outputs), CLIENT_BLOCK: self.block, CONFIG: config})

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read the records."""
        config: Mapping[str, Any] = config_of(content, CONFIG)
        if TAIL not in config:
            return cls(_batches(content, OUTPUTS))
        block = record_of(content, CLIENT_BLOCK)
        return cls(_batches(content, FEATURES), block, int(config[TAIL]), bool(config[OWN_HEAD]))


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
        Shape (N,), in the order of the examples: int32, int64 where they were read.
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
        return cls(vector_of(content, LABELS), count_of(_metrics(content), LABELS_DIGEST))


@lru_cache(maxsize=16)
def _step_config(server_round: int, step: int, label_policy: str) -> ConfigRecord:
    """Return what all clients are told in a step; to be copied."""
    return ConfigRecord({SERVER_ROUND: server_round, STEP: step, LABEL_POLICY: label_policy})


@lru_cache(maxsize=1024)
def _step_metrics(step: int, num_steps: int, num_examples: int) -> MetricRecord:
    """Return what a client says of a mini-batch, the same in every round; to be copied."""
    return MetricRecord({STEP: step, NUM_STEPS: num_steps, NUM_EXAMPLES: num_examples})


def _metrics(content: RecordDict) -> MetricRecord:
    if not isinstance(record := content.get(METRICS), MetricRecord):
        raise ValueError(f"its reply has no record {METRICS!r}")
    return record


def _batches_record(batches: Sequence[Tensor]) -> ArrayRecord:
    # In main memory: those of an edge's clients are there all at once, of a whole test set each.
    return record_by_reference({f"{i}": to_array(values.cpu()) for i, values in enumerate(batches)})


def _batches(content: RecordDict, name: str) -> list[Tensor]:
    return [to_tensor(array) for array in record_of(content, name).values()]


def _check_step(metrics: MetricRecord, step: int) -> None:
    if (answered := count_of(metrics, STEP)) != step:
        raise ValueError(f"it answered step {answered}, not step {step}")


def _numbers_record(label_policy: str, numbers: np.ndarray | None) -> dict[str, ArrayRecord]:
    """Return the record of what tells the labels of a mini-batch; none where labels are kept."""
    return {} if numbers is None else {label_policy: record_by_reference({label_policy: to_vector(numbers)})}


def _numbers(content: RecordDict, label_policy: str) -> np.ndarray | None:
    return None if label_policy == KEPT else vector_of(content, label_policy)
