"""What a run yields: edge rounds, edges' global rounds, evaluations and global rounds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ArrayRecord, MetricRecord

from espalier.clients.shared import text

EVERYBODY = 0  # the node id of a failure that is the edge's own


@dataclass(frozen=True)
class Failure:
    """A node that was left out of a round.

    Parameters
    ----------
    node_id : int
        The node that was asked.
    reason : str
        Why it was left out; a text that is long, or has other than printable characters, is made one short line.
    """

    node_id: int
    reason: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", text.one_line(self.reason))


@dataclass(frozen=True)
class Update:
    """What an edge round gave.

    Parameters
    ----------
    arrays : ArrayRecord, optional
        The edge's new model; None where the round gave none, and the edge keeps the one it had.
    metrics : MetricRecord, optional
        Aggregated training metrics.
    weight : float
        Weight of those who took part, e.g. their number of training examples; more than 0 where there is a model.
    participants : Sequence[int]
        Node ids of those who took part, in client order.
    failures : Sequence[Failure]
        Those who were asked and left out.
    edges : Mapping[str, EdgeOutcome]
        What the edges below did, where the edge is a `Hierarchical`.
    losses : Mapping[int, float]
        Mean training losses of those who took part and told them, by node id.
    """

    arrays: ArrayRecord | None = None
    metrics: MetricRecord | None = None
    weight: float = 0.0
    participants: Sequence[int] = ()
    failures: Sequence[Failure] = ()
    edges: "Mapping[str, EdgeOutcome]" = field(default_factory=dict)
    losses: Mapping[int, float] = field(default_factory=dict)


def is_evaluated(number: int, num_rounds: int, every: int) -> bool:
    """Return whether the global model is evaluated after a round: `every` so many, 0 for none, and after the last."""
    return number == num_rounds or (every > 0 and number % every == 0)


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation of a model on an edge's nodes gave.

    Parameters
    ----------
    metrics : MetricRecord, optional
        Aggregated metrics; None where there are none.
    weight : float
        Weight of those who answered; 0 where their metrics could not be aggregated.
    replies : Mapping[int, MetricRecord]
        Each node's own metrics, by node id, in client order.
    failures : Sequence[Failure]
        Those who were asked and left out.
    edges : Mapping[str, Evaluation]
        Evaluations of the edges below, where the edge is a `Hierarchical`.
    """

    metrics: MetricRecord | None = None
    weight: float = 0.0
    replies: Mapping[int, MetricRecord] = field(default_factory=dict)
    failures: Sequence[Failure] = ()
    edges: "Mapping[str, Evaluation]" = field(default_factory=dict)


@dataclass(frozen=True)
class EdgeOutcome:
    """What an edge did in one global round.

    Parameters
    ----------
    arrays : ArrayRecord, optional
        Its model at the end of its last edge round; None where no edge round succeeded.
    updates : Sequence[Update]
        One per edge round.
    seconds : float
        From the first message to the last reply.
    """

    arrays: ArrayRecord | None
    updates: Sequence[Update]
    seconds: float

    @property
    def weight(self) -> float:
        """Mean weight of its edge rounds that succeeded; 0 where none did."""
        weights = [update.weight for update in self.updates if update.arrays is not None]
        return sum(weights) / len(weights) if weights else 0.0

    @property
    def metrics(self) -> dict[str, Any]:
        """Training metrics of its last edge round that had any."""
        return next((dict(update.metrics) for update in reversed(self.updates) if update.metrics), {})

    @property
    def failures(self) -> list[Failure]:
        """Failures of all its edge rounds."""
        return [failure for update in self.updates for failure in update.failures]


@dataclass(frozen=True)
class Round:
    """What one global round gave.

    Parameters
    ----------
    number : int
        Counts from 1.
    arrays : ArrayRecord
        The global model after it.
    train_metrics, evaluate_metrics : MetricRecord, optional
        What the cloud strategy made of the edges' metrics.
    edges : Mapping[str, EdgeOutcome]
        Training, by edge; edges that the cloud did not choose are not in it.
    evaluations : Mapping[str, Evaluation]
        Evaluation of the global model, by edge; empty in a round without one.
    seconds : float
        Wall time of the round.
    failures : Sequence[Failure]
        Of the cloud strategy itself: why it made no model, or nothing of an evaluation.
    is_new : bool
        The cloud made the model in this round; else it is that of before.
    """

    number: int
    arrays: ArrayRecord
    train_metrics: MetricRecord | None
    evaluate_metrics: MetricRecord | None
    edges: Mapping[str, EdgeOutcome]
    evaluations: Mapping[str, Evaluation] = field(default_factory=dict)
    seconds: float = 0.0
    failures: Sequence[Failure] = ()
    is_new: bool = True


def update_as_data(update: Update, number_of: Mapping[int, int]) -> dict[str, Any]:
    """Return an edge round as plain data, without its model: whether there is one is all that is told.

    Parameters
    ----------
    update : Update
        The edge round.
    number_of : Mapping[int, int]
        What nodes are called there, by node id.
    """
    return {
        "trained": update.arrays is not None,
        "metrics": update.metrics,
        "weight": float(update.weight),
        "participants": [number_of[node_id] for node_id in update.participants],
        "failures": failures_as_data(update.failures, number_of),
    }


def failures_as_data(failures: Sequence[Failure], number_of: Mapping[int, int]) -> list[tuple[int | None, str]]:
    """Return who failed, None for the edge itself, and why; parameters as of `update_as_data`."""
    return [(None if f.node_id == EVERYBODY else number_of[f.node_id], f.reason) for f in failures]
