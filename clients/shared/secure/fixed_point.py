"""A client's part of a sum as whole numbers, and what is read from the sum; its error is stated.

Numbers of an update are clipped to ``[-clip, clip]`` and go in steps of ``clip / levels``, where ``levels`` is the most
that can't overflow in a sum over all clients: with 64 clients 2^25, so the steps are about those of float32.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ..correction import Weights
from .masks import Masked

MOST_CLIENTS = 1024  # of a sum
_LARGEST = 2.0**20  # of a loss, and of a number beside the model
_PARTS = 2.0**32  # into which these are divided
_EXACT = 2**53  # whole numbers up to this one are exact in double precision
_WEIGHT, _LOSS, _CLIPPED = range(3)  # the first exact numbers


@dataclass(frozen=True)
class Scale:
    """How numbers become whole ones in a round.

    Parameters
    ----------
    clip : float
        The largest number of an update, by amount.
    clients : int
        At most so many are added up.
    most_weight : int
        The largest weight of a client.
    """

    clip: float
    clients: int
    most_weight: int

    def __post_init__(self) -> None:
        if not 1 <= self.clients <= MOST_CLIENTS:
            raise ValueError(f"{self.clients} clients in a sum, expected 1 to {MOST_CLIENTS}")
        if self.most_weight < 1 or not self.clip > 0:
            raise ValueError(f"a largest weight of {self.most_weight} and a clip of {self.clip}: both must be above 0")

    def sum_of(self, instruction: bytes) -> tuple[object, ...]:
        """Return what clients must have been told alike for their masks to cancel, see `mask_key`.

        With another scale, or another model, an edge could make the numbers of all clients but one zero.

        Parameters
        ----------
        instruction : bytes
            The digest of what they were told to train.
        """
        return float(self.clip), self.clients, self.most_weight, instruction.hex()

    @property
    def step(self) -> float:
        """The distance of two numbers."""
        return self.clip / self.levels

    @property
    def levels(self) -> int:
        """The largest whole number of one client."""
        return (2**31 - 1) // self.clients

    def error(self, clients: int, weight: float) -> float:
        """Return what a number of the weighted mean can be off by, beside what was clipped.

        Parameters
        ----------
        clients : int
            So many were added up: each is rounded by half a step at most.
        weight : float
            The sum of their weights.
        """
        return clients * self.step / 2 * self.most_weight / weight


@dataclass(frozen=True)
class Form:
    """What a sum is of, which edge and clients know alike.

    Parameters
    ----------
    sent : Mapping[str, Tensor]
        The model that clients started from.
    told : tuple[str, ...] (default: none)
        What they tell beside it: names in the model, and of single numbers.
    without : tuple[str, ...] (default: none)
        Names of the model that they do not send back.
    """

    sent: Weights
    told: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    @cached_property
    def floats(self) -> list[str]:
        """Names of the model's numbers that are averaged in steps."""
        return [name for name in self._names if self.sent[name].is_floating_point()]

    @cached_property
    def integers(self) -> list[str]:
        """Names of its counters, which are averaged exactly."""
        return [name for name in self._names if not self.sent[name].is_floating_point()]

    @cached_property
    def arrays(self) -> list[str]:
        """Names of what is told that are in the model."""
        return [name for name in self.told if name in self.sent]

    @cached_property
    def numbers(self) -> list[str]:
        """Names of what is told that are not."""
        return [name for name in self.told if name not in self.sent]

    @property
    def sizes(self) -> tuple[int, int]:
        """How many numbers there are in steps, and how many exact ones."""
        of = {name: tensor.numel() for name, tensor in self.sent.items()}
        exact = 3 + sum(of[name] for name in self.integers) + len(self.numbers)
        return sum(of[name] for name in (*self.floats, *self.arrays)), exact

    def kind_of(self, name: str) -> torch.dtype:
        """Return the type of what is told under a name: that of the model's own, of a number double precision."""
        return self.sent[name].dtype if name in self.sent else torch.float64

    @property
    def _names(self) -> Iterator[str]:
        return (name for name in self.sent if name not in self.without)


@dataclass(frozen=True)
class Part:
    """What one client adds to a sum.

    Parameters
    ----------
    model : Mapping[str, Tensor]
        Its model: what of those sent it sends back.
    weight : int
        What it weighs.
    loss : float, optional (default: None)
        Its training loss; one beyond 2^20 counts as that.
    told : Mapping[str, Tensor], optional (default: None)
        What it tells beside the model, which weighs 1.
    """

    model: Weights
    weight: int
    loss: float | None = None
    told: Weights | None = None


@dataclass(frozen=True)
class Total:
    """What a sum says of its clients together.

    Parameters
    ----------
    model : Mapping[str, Tensor]
        The mean of their models by weight, in double precision.
    told : Mapping[str, Tensor]
        The plain mean of what they tell.
    weight : int
        The sum of their weights.
    loss : float
        The mean of their losses by weight.
    clipped : int
        How many numbers were clipped.
    error : float
        See `Scale.error`.
    """

    model: Weights
    told: Weights
    weight: int
    loss: float
    clipped: int
    error: float


def encoded(part: Part, form: Form, scale: Scale) -> Masked:
    """Return a client's part as whole numbers.

    Raises
    ------
    ValueError
        If the model is not of the form, it weighs more than the largest weight, a number is not finite, or a counter
        changed by so much that the sum of all would not be exact.
    """
    if not 0 < part.weight <= scale.most_weight:
        raise ValueError(f"it weighs {part.weight}, and the edge allows for {scale.most_weight} at most")
    share, told = part.weight / scale.most_weight, part.told or {}
    updates = {name: _difference(name, part.model, form.sent) for name in (*form.floats, *form.integers)}
    clipped, values = 0, list[np.ndarray]()
    for numbers, factor in (
        *((updates[name], share) for name in form.floats),
        *((_numbers(name, told[name], form.sent[name].shape), 1.0) for name in form.arrays),
    ):
        clipped += int((np.abs(numbers) > scale.clip).sum())
        inside = np.clip(numbers, -scale.clip, scale.clip)
        values.append(np.rint(inside * (factor * scale.levels / scale.clip)).astype(np.int64).astype(np.uint32))
    loss = min(max(part.loss or 0.0, -_LARGEST), _LARGEST)
    exact = [np.array([part.weight, _parts(loss, share), clipped], np.int64)]
    exact += [_counts(name, updates[name] * part.weight, scale) for name in form.integers]
    exact += [np.array([_parts(float(told[name]), 1.0)], np.int64) for name in form.numbers]
    return Masked(np.concatenate([np.zeros(0, np.uint32), *values]), np.concatenate(exact).view(np.uint64))


def decoded(total: Masked, form: Form, scale: Scale, clients: int) -> Total:
    """Return what a sum over so many clients says.

    Raises
    ------
    ValueError
        If it is no sum of what `encoded` makes: a client has added something else.
    """
    values, exact = total.values.view(np.int32).astype(np.float64), total.exact.view(np.int64)
    weight, clipped = int(exact[_WEIGHT]), int(exact[_CLIPPED])
    if not 0 < weight <= clients * scale.most_weight or not 0 <= clipped <= clients * values.size:
        raise ValueError("the sum is none of what clients can send: one has sent something else")
    if values.size and np.abs(values).max() > clients * scale.levels:
        raise ValueError(f"the sum is beyond {scale.clip:g} for each client: one has sent something else")
    shares = weight / scale.most_weight
    cut, exact_cut = _Cutter(values * scale.step), _Cutter(exact[3:])
    model = {name: form.sent[name].double() + cut.next(form.sent[name]) / shares for name in form.floats}
    told = {name: cut.next(form.sent[name]) / clients for name in form.arrays}
    for name in form.integers:
        model[name] = form.sent[name].double() + exact_cut.next(form.sent[name]).double() / weight
    told |= {name: exact_cut.next(torch.zeros(())).double() / _PARTS / clients for name in form.numbers}
    loss = float(exact[_LOSS]) / _PARTS / shares
    error = scale.error(clients, weight)
    return Total({n: model[n] for n in form.sent if n in model}, told, weight, loss, clipped, error)


def in_form(made: Weights, form: Form) -> dict[str, Tensor]:
    """Return a mean in the types of what was sent, counters as the nearest whole numbers."""
    return {
        n: (own if form.sent[n].is_floating_point() else own.round()).to(form.sent[n].dtype) for n, own in made.items()
    }


class _Cutter:
    """Cuts one tensor after the other off a vector."""

    def __init__(self, vector: np.ndarray) -> None:
        self._vector, self._start = vector, 0

    def next(self, like: Tensor) -> Tensor:
        """Return the next one, of the shape of another."""
        start, self._start = self._start, self._start + like.numel()
        return torch.from_numpy(self._vector[start : self._start].copy()).reshape(like.shape)


def _difference(name: str, model: Weights, sent: Weights) -> np.ndarray:
    if name not in model:
        raise ValueError(f"its model has no array {name!r}")
    return _numbers(name, model[name].detach().cpu().double() - sent[name].cpu().double(), sent[name].shape)


def _numbers(name: str, tensor: Tensor, shape: Collection[int]) -> np.ndarray:
    if tensor.shape != shape:
        raise ValueError(f"its {name} is of shape {tuple(tensor.shape)}, expected {tuple(shape)}")
    numbers = tensor.detach().cpu().double().numpy().ravel()
    if not np.isfinite(numbers).all():
        raise ValueError(f"its {name} holds NaN or Inf")
    return numbers


def _counts(name: str, numbers: np.ndarray, scale: Scale) -> np.ndarray:
    most = _EXACT // scale.clients
    if numbers.size and np.abs(numbers).max() > most:
        raise ValueError(f"its {name} changes by more than is summed exactly, {most:.3g} times weight")
    return np.rint(numbers).astype(np.int64)


def _parts(number: float, share: float) -> int:
    if not abs(number) <= _LARGEST:
        raise ValueError(f"a number beside its model is not from {-_LARGEST:g} to {_LARGEST:g}")  # the edge reads this
    return round(number * share * _PARTS)
