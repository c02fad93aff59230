"""A client's round as a conversation with whatever trains: whole, stacked, recorded or cut.

A rule is a generator: it yields a `Pass`, is sent what came of it (`Learned`), and returns what goes to the edge and
what stays. So an algorithm's client half is written once, and all that trains runs it. FedAvg is `plain_round`::

    def plain_round(begun):
        learned = yield Pass()
        return Done(learned.weights)
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from .correction import NO_CORRECTION, Correction, Weights


@dataclass(frozen=True)
class Begun:
    """What a client's round begins with. In split training each half sees the weights of its own blocks.

    Parameters
    ----------
    start : Mapping[str, Tensor]
        The state of the model, as the edge sent it.
    trained : Mapping[str, Tensor]
        Those of its weights that train.
    sent : Mapping[str, Tensor] (default: none)
        What the edge's half sent beside the model, see `espalier.strategies.EdgeHalf`.
    kept : Mapping[str, Tensor] (default: none)
        What `Done.kept` was in the client's last round; none before.
    """

    start: Weights
    trained: Weights
    sent: Weights = field(default_factory=dict)
    kept: Weights = field(default_factory=dict)


@dataclass(frozen=True)
class Pass:
    """Local training on the mini-batches of a round.

    Parameters
    ----------
    start : Mapping[str, Tensor], optional (default: None)
        The state of the model to start from. None: that which the edge sent.
    correction : Correction (default: none)
        Corrects each step.
    """

    start: Weights | None = None
    correction: Correction = NO_CORRECTION


@dataclass(frozen=True)
class Learned:
    """What came of a pass.

    Parameters
    ----------
    weights : Mapping[str, Tensor]
        The state of the model after it.
    path : float
        The sum of the learning rates of its steps, K * eta.
    steps : int
        How many they were, K.
    momentum : float (default: 0.0)
        SGD's.
    pull : float (default: 0.0)
        How much each step was drawn to an anchor, see `Correction`; a strategy's proximal term is among it.
    """

    weights: Weights
    path: float
    steps: int
    momentum: float = 0.0
    pull: float = 0.0


@dataclass(frozen=True)
class Done:
    """How a client's round ends.

    Parameters
    ----------
    weights : Mapping[str, Tensor]
        The state of the model that goes to the edge.
    told : Mapping[str, Tensor] (default: none)
        What the edge's half is told beside it: weights by the names that they have in the model, and numbers, which are
        tensors without dimensions, by other names.
    kept : Mapping[str, Tensor], optional (default: None)
        What the client keeps until its next round. None: what it has.
    """

    weights: Weights
    told: Weights = field(default_factory=dict)
    kept: Mapping[str, Tensor] | None = None


LocalRound = Generator[Pass, Learned, Done]
Rule = Callable[[Begun], LocalRound]


def plain_round(begun: Begun) -> LocalRound:
    """Train once, and send the model: the client of FedAvg (arXiv:1602.05629)."""
    learned = yield Pass()
    return Done(learned.weights)


def ended(conversation: LocalRound, learned: Learned) -> Done:
    """Return how a round ends after its one pass; ValueError if the rule wants another."""
    try:
        conversation.send(learned)
    except StopIteration as stop:
        return _done(stop.value)
    raise ValueError("the algorithm's clients train more than once in a round, which a cut model can't")


def _done(value: object) -> Done:
    if not isinstance(value, Done):
        raise TypeError(f"a rule returned {type(value).__name__}, expected Done")
    return value
