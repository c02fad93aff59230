"""A client's round as a conversation with whatever trains: whole, stacked, recorded or cut.

A rule is a generator: it yields a `Pass`, is sent what came of it (`Learned`), and returns what goes to the edge and
what stays. So an algorithm's client half is written once, and all that trains runs it. FedAvg is `plain_round`::

    def plain_round(begun):
        learned = yield Pass()
        return Done(learned.weights)
"""

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from .correction import NO_CORRECTION, Correction, Weights
from .rounding import is_finite


class BadRuleError(ValueError):
    """A rule keeps to no conversation, or to none that what trains can have."""


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
    own : Collection[str] (default: none)
        The names of weights that never leave the client, see `espalier.clients.half.ClientHalf.stays`.
    num_batches : int (default: 0)
        The mini-batches of a pass. In split training it is not said.
    """

    start: Weights
    trained: Weights
    sent: Weights = field(default_factory=dict)
    kept: Weights = field(default_factory=dict)
    own: Collection[str] = ()
    num_batches: int = 0


@dataclass
class OptimizerState:
    """What an optimizer goes on with in the next `Pass` that has the same one of these: its momentum, Adam's moments.

    Parameters
    ----------
    held : Any (default: None)
        Is for that which trains alone; None: no pass was yet.
    """

    held: Any = None


@dataclass(frozen=True)
class Pass:
    """Local training on the mini-batches of a round. Each pass sees the same, in the same order.

    Parameters
    ----------
    start : Mapping[str, Tensor], optional (default: None)
        The state of the model to start from. None: that which the edge sent.
    correction : Correction (default: none)
        Corrects each step.
    trains : Collection[str], optional (default: None)
        The names of the weights that train; all others stay to the bit, but for running statistics. None: all train.
    epochs : int, optional (default: None)
        Local epochs. None: as the client was told.
    batches : Sequence[int], optional (default: None)
        Which of the round's mini-batches it sees, by their numbers from 0, in this order. None: each once.
    optimizer : OptimizerState, optional (default: None)
        Lets the optimizer go on from the last pass that had the same. None: it begins anew.
    """

    start: Weights | None = None
    correction: Correction = NO_CORRECTION
    trains: Collection[str] | None = None
    epochs: int | None = None
    batches: Sequence[int] | None = None
    optimizer: OptimizerState | None = None

    def __post_init__(self) -> None:
        """Refuse one text in the place of names, which would have each name that is in it train."""
        if isinstance(self.trains, str):
            raise TypeError(f"Pass.trains is {self.trains!r}: allowed are names of weights, such as [{self.trains!r}]")

    def among(self, names: Sequence[str]) -> list[str]:
        """Return those of a model's weights that this trains; ValueError if it names none of them."""
        if self.trains is None:
            return list(names)
        if not self.trains:
            raise ValueError(
                "the pass trains none of the model's weights: there are none that train in that part of it"
            )
        if not (found := [name for name in names if name in self.trains]) and names:
            raise ValueError(f"Pass.trains names no weight that trains: allowed are whole names, such as {names[0]!r}")
        return found

    def dropout_purpose(self) -> str:
        """Return what to draw dropout for: not the same for every mini-batch that is seen by itself."""
        return f"dropout/{self.batches[0]}" if self.batches else "dropout"

    def corrected(self) -> Correction:
        """Return its correction, where blocks of a cut model train: BadRuleError if it asks for more than that."""
        if self != Pass(correction=self.correction):
            raise BadRuleError("the algorithm's clients train parts of a model or of a round, which a cut model can't")
        return self.correction


WHOLE_PASS = Pass()


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
    loss : float (default: 0.0)
        The mean over the examples seen. In split training it is not said.
    """

    weights: Weights
    path: float
    steps: int
    momentum: float = 0.0
    pull: float = 0.0
    loss: float = 0.0


@dataclass(frozen=True)
class Done:
    """How a client's round ends.

    Parameters
    ----------
    weights : Mapping[str, Tensor]
        The state of the model that goes to the edge.
    told : Mapping[str, Tensor] (default: none)
        What the edge's half is told beside it: weights by the names that they have in the model, and numbers by other
        names. Numbers are tensors without dimensions; of Python's, whole ones and truth values, float64 is made.
    kept : Mapping[str, Tensor], optional (default: None)
        What the client keeps until its next round; of Python's numbers float64 is made. None: what it has, as after a
        round that is of no use.
    loss : float, optional (default: None)
        The round's training loss. None: that of the first pass. In split training it is that of the mini-batches.
    """

    weights: Weights
    told: Weights = field(default_factory=dict)
    kept: Mapping[str, Tensor] | None = None
    loss: float | None = None

    def __post_init__(self) -> None:
        """Make tensors of numbers; TypeError for what is neither."""
        object.__setattr__(self, "weights", _tensors("weights", self.weights))
        told = _tensors("told", self.told)
        whole = [name for name, tensor in told.items() if name not in self.weights and _is_whole_number(tensor)]
        object.__setattr__(self, "told", {**told, **{name: told[name].double() for name in whole}})
        object.__setattr__(self, "kept", None if self.kept is None else _tensors("kept", self.kept))

    @property
    def is_of_use(self) -> bool:
        """Whether nothing holds NaN or Inf, but for numbers that are kept; else the reply is left out."""
        own = [tensor for tensor in (self.kept or {}).values() if tensor.dim()]
        return all(map(is_finite, (*self.weights.values(), *self.told.values(), *own)))


def _tensors(what: str, given: Any) -> dict[str, Tensor]:
    """Return what a rule says by name, numbers as tensors without dimensions; TypeError for anything else."""
    if not isinstance(given, Mapping):
        raise TypeError(f"Done.{what} is of {type(given).__name__}: allowed are tensors and numbers by name")
    made = dict(given)
    for name, value in given.items():
        if not isinstance(value, Tensor):
            made[name] = _as_tensor(f"Done.{what}[{name!r}]", value)
    return made


def _as_tensor(what: str, value: Any) -> Tensor:
    if not isinstance(value, Real):
        raise TypeError(f"{what} is of {type(value).__name__}: allowed are tensors and numbers")
    try:
        return torch.tensor(float(value), dtype=torch.float64)
    except OverflowError:
        raise ValueError(f"{what} is a whole number beyond those of float64") from None


def _is_whole_number(tensor: Tensor) -> bool:
    return not (tensor.dim() or tensor.is_floating_point() or tensor.is_complex())


LocalRound = Generator[Pass, Learned, Done]
"""A round under way: it yields passes of local training, gets what came of each, and returns what stays and goes."""
Rule = Callable[[Begun], LocalRound]
"""What begins a client's round, such as `plain_round`."""


def plain_round(begun: Begun) -> LocalRound:
    """Train once, and send the model: the client of FedAvg (arXiv:1602.05629)."""
    learned = yield Pass()
    return Done(learned.weights)


def begun_by(rule: Rule, begun: Begun) -> LocalRound:
    """Return the round that a rule begins; BadRuleError if it begins none."""
    if not isinstance(conversation := rule(begun), Generator):
        what = type(conversation).__name__
        raise BadRuleError(f"the algorithm's rule has no yield, and returned {what}: it has to yield a Pass first")
    return conversation


def as_pass(due: Any) -> Pass:
    """Return what a rule yielded; BadRuleError if it is no pass."""
    if not isinstance(due, Pass):
        what = "the class Pass" if due is Pass else type(due).__name__
        raise BadRuleError(f"the algorithm's rule yielded {what}: allowed is Pass()")
    return due


def first_correction(conversation: LocalRound) -> Correction:
    """Begin a round of blocks of a cut model, and return what corrects their steps; BadRuleError if it begins none."""
    try:
        return as_pass(next(conversation)).corrected()
    except StopIteration:
        raise BadRuleError("the algorithm's rule returned before any pass: allowed is Done, after a pass") from None


def ended(conversation: LocalRound, learned: Learned) -> Done:
    """Return how a round ends after its one pass; BadRuleError if the rule wants another."""
    try:
        conversation.send(learned)
    except StopIteration as stop:
        if not isinstance(stop.value, Done):
            what = type(stop.value).__name__
            raise BadRuleError(f"the algorithm's rule returned {what}: allowed is Done, after a pass") from None
        return stop.value
    raise BadRuleError("the algorithm's clients train more than once in a round, which a cut model can't")
