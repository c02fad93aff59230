"""The edge's half of an algorithm, beside a strategy that averages models."""

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

from espalier.clients.shared.arrays import to_record, to_weights
from espalier.clients.shared.correction import Weights
from espalier.clients.shared.statistics import is_statistic
from espalier.clients.shared.tensor_array import record_by_reference
from espalier.clients.shared.text import quoted

from .guards.bounds import ABSURD
from .guards.changes import Arrays, size_of_weights
from .guards.updates import UpdateGuard, guard_state, load_guard_state
from .reply_faults import array_fault
from .state import check_savable, unsavable_attribute

NO_USE = "what it tells beside the model is of no use"
MOST_NUMBERS = 16  # that a client tells beside the model
NUMBER = Array(np.zeros((), np.float32))


@dataclass(frozen=True)
class Gathered:
    """What clients made of a round, before it is averaged. Weights are those that an optimizer moves.

    Parameters
    ----------
    start : Mapping[str, Tensor]
        The weights that clients started from.
    models : Mapping[int, Mapping[str, Tensor]]
        What they made of them, by node id, in client order.
    told : Mapping[int, Mapping[str, Tensor]]
        What they tell beside, see `espalier.clients.shared.local_round.Done`; nothing of those who tell nothing.
    shares : Mapping[int, float]
        What each weighs in an average by examples; they add up to 1.
    num_clients : int
        How many clients the edge has.
    """

    start: Weights
    models: Mapping[int, Weights]
    told: Mapping[int, Weights]
    shares: Mapping[int, float]
    num_clients: int

    @classmethod
    def of(
        cls,
        start: Weights,
        models: Mapping[int, Weights],
        told: Mapping[int, Weights],
        examples: Mapping[int, float],
        num_clients: int,
    ) -> "Gathered":
        """Return it of whole models, and of what each weighs."""
        total = sum(examples[n] for n in models) or 1.0
        shares = {n: examples[n] / total for n in models}
        own = {n: moved(model) for n, model in models.items()}
        return cls(moved(start), own, {n: told.get(n, {}) for n in models}, shares, num_clients)


class EdgeHalf:
    """What goes to clients beside the model, and what is made of what comes back; the default is FedAvg's edge.

    In every round `begin`, `sent`, `averaged` and `learn` are called in this order. A subclass whose attributes are
    numbers, weights by name, and lists and mappings of these, is saved as it is.
    """

    def begin(self, server_round: int, start: Weights) -> None:
        """Take note of a round that begins.

        Parameters
        ----------
        server_round : int
            Counted over global rounds, from 1.
        start : Mapping[str, Tensor]
            The weights that clients start from, of those that an optimizer moves.
        """

    def sent(self, node_id: int) -> Mapping[str, Tensor | float]:
        """Return what goes to a client beside the model: weights by their names in it, and numbers by other names."""
        return {}

    def averaged(self, gathered: Gathered) -> Mapping[int, Weights]:
        """Return what the edge's strategy averages, by node id: `gathered.models`, or weights in their place.

        Who is not in it is left out of the round, as one who tells what is of no use.
        """
        return gathered.models

    def learn(self, model: Weights, told: Mapping[int, Weights], num_clients: int) -> None:
        """Take note of the model that was made.

        Parameters
        ----------
        model : Mapping[str, Tensor]
            Its weights, of those that an optimizer moves.
        told : Mapping[int, Mapping[str, Tensor]]
            What clients told, by node id, in client order, of those whose models are part of the average.
        num_clients : int
            How many clients the edge has.
        """

    def clients_begin_anew(self) -> None:
        """Forget what goes by what clients keep (`espalier.clients.shared.local_round.Done`), which they have lost."""

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive an interruption; UnsavableError if an attribute is of a type that can't."""
        state = {}
        for name, value in vars(self).items():
            try:
                state[name] = _with_records(value)
                check_savable(state[name])
            except TypeError as error:
                raise unsavable_attribute(self, name, error) from None
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        for name, value in state.items():
            setattr(self, name, _with_weights(value))


def checked_half(half: Any) -> EdgeHalf:
    """Return an edge's half; TypeError for what is none, or has methods that can't be called as `EdgeHalf`'s are."""
    if not isinstance(half, EdgeHalf):
        what = f"{half.__name__} itself" if isinstance(half, type) else type(half).__name__
        raise TypeError(f"the half of an edge is an object of a subclass of EdgeHalf, not {what}")
    for name, method in inspect.getmembers(EdgeHalf, inspect.isfunction):
        _, *parameters = inspect.signature(method).parameters
        try:
            inspect.signature(getattr(half, name)).bind(*parameters)
        except TypeError:
            raise TypeError(f"{type(half).__name__}.{name}() has to take ({', '.join(parameters)})") from None
    return half


class BadReturnError(TypeError):
    """A method of an edge's half returned what it may not."""


def sent_beside(half: EdgeHalf, node_id: int) -> Weights:
    """Return what a half sends to a client, numbers as tensors without a shape; BadReturnError if it is no such."""
    sent = half.sent(node_id)
    try:
        return {n: v if isinstance(v, Tensor) else torch.tensor(v, dtype=torch.float64) for n, v in sent.items()}
    except (AttributeError, TypeError, ValueError, RuntimeError):
        raise BadReturnError(f"{type(half).__name__}.sent() returned no tensors and numbers by name") from None


def _with_records(value: Any) -> Any:
    """Return a value with records in the place of weights by name; TypeError for a mapping that is no dict."""
    if isinstance(value, Mapping):
        if type(value) is not dict:
            raise TypeError(type(value).__name__)
        is_weights = all(isinstance(name, str) and isinstance(own, Tensor) for name, own in value.items())
        return to_record(value) if is_weights else {key: _with_records(own) for key, own in value.items()}
    return [_with_records(own) for own in value] if isinstance(value, list) else value


def _with_weights(value: Any) -> Any:
    """Return what `_with_records` was given."""
    if isinstance(value, ArrayRecord):
        return to_weights(value)
    if isinstance(value, dict):
        return {key: _with_weights(own) for key, own in value.items()}
    return [_with_weights(own) for own in value] if isinstance(value, list) else value


class SentNumbers(EdgeHalf):
    """Sends all clients the same numbers in every round, such as an algorithm's settings.

    Parameters
    ----------
    numbers : Mapping[str, float]
        By their names, which no weight has.
    """

    def __init__(self, numbers: Mapping[str, float]) -> None:
        self.numbers: Weights = {n: torch.tensor(float(value), dtype=torch.float64) for n, value in numbers.items()}

    def sent(self, node_id: int) -> Weights:
        """Return them."""
        return self.numbers


def moved(weights: Weights) -> dict[str, Tensor]:
    """Return those weights of a model's state that an optimizer moves: no running statistics, no counters."""
    return {name: w for name, w in weights.items() if w.is_floating_point() and not is_statistic(name)}


def of_blocks(beside: Weights, blocks: Collection[str], model: Collection[str]) -> dict[str, Tensor]:
    """Return what of an edge's half is for some blocks of a model: all but the weights of other blocks."""
    return {name: tensor for name, tensor in beside.items() if name in blocks or name not in model}


def told_fault(told: ArrayRecord | None, model: ArrayRecord) -> str:
    """Return why what a client told can't be of a model, or an empty string: arrays like some of it, and numbers."""
    told = told or ArrayRecord()
    numbers = [name for name, array in told.items() if name not in model and not array.shape]
    if unknown := [name for name in told if name not in model and name not in numbers]:
        return f"it tells {quoted(unknown[0])} beside the model, which has no such array"
    if len(numbers) > MOST_NUMBERS:
        return f"it tells {len(numbers)} numbers beside the model, expected {MOST_NUMBERS} at most"
    return array_fault(told, record_by_reference({name: model.get(name, NUMBER) for name in told}))


def averaged_within(
    half: EdgeHalf, gathered: Gathered, guard: "GuardOfTold"
) -> tuple[dict[int, Weights], dict[int, str]]:
    """Return what is averaged by an edge's half, as a guard allows, and why who is left out is.

    What the half makes of a good model goes by what the client tells, so it is judged once more.

    Raises
    ------
    BadReturnError
        If it has made something else than weights like those of `gathered.start`, of clients of the round.
    """
    models, start = dict(gathered.models), gathered.start  # as they are before
    given = half.averaged(gathered)
    if not _is_of_those(given, models, start):
        allowed = "weights of the model's names and shapes, by node ids of the round"
        raise BadReturnError(f"{type(half).__name__}.averaged() has to return {allowed}")
    made = dict(given)
    faults = {n: NO_USE for n in models if n not in made}
    changes = {n: {name: w - start[name] for name, w in own.items()} for n, own in made.items() if own is not models[n]}
    kept, too_long = guard.within_bounds(changes, start)
    for node_id, change in changes.items():
        if node_id in too_long:
            del made[node_id]
        elif kept[node_id] is not change:
            made[node_id] = {name: start[name] + w for name, w in kept[node_id].items()}
    return made, {**faults, **too_long}


def _is_of_those(given: Any, models: Mapping[int, Weights], start: Weights) -> bool:
    """Return whether something is weights of a model, or some of them, by node ids of a round."""

    def is_of_model(own: Any) -> bool:
        return isinstance(own, Mapping) and all(
            isinstance(w, Tensor) and name in start and w.shape == start[name].shape for name, w in own.items()
        )

    return isinstance(given, Mapping) and all(n in models and is_of_model(own) for n, own in given.items())


class GuardOfTold:
    """Judges what clients tell, as an edge's guard judges their models; its lengths are of another kind.

    Parameters
    ----------
    guard_of_edge : Callable[[], UpdateGuard | None]
        Returns the guard of the edge, which gets it after it is made; None: nothing is judged.
    """

    def __init__(self, guard_of_edge: Callable[[], UpdateGuard | None]) -> None:
        self._guard_of_edge = guard_of_edge
        self._own: UpdateGuard | None = None

    @property
    def _guard(self) -> UpdateGuard | None:
        if (guard := self._guard_of_edge()) is None:
            return None
        if self._own is None:
            self._own = UpdateGuard(guard.guard, guard.node_name)
        self._own.count_nodes(guard.num_nodes)
        return self._own

    def within_bounds(self, told: Mapping[int, Weights], start: Weights) -> tuple[dict[int, Weights], dict[int, str]]:
        """Return what is kept of what clients told, who began with the weights `start`, and why whose is not.

        While nothing is known of what is usual, only what is absurd beside these weights is too long: it need not be of
        their kind.
        """
        if (guard := self._guard) is None or guard.guard.mode == "off" or not any(told.values()):
            return dict(told), {}
        length = size_of_weights(_as_arrays(start)) * (
            ABSURD / guard.guard.update_norm if guard.guard.update_norm else 1
        )
        values = {n: _as_arrays(own) for n, own in told.items()}
        pairs = {n: ({name: np.zeros_like(v) for name, v in own.items()}, own) for n, own in values.items() if own}
        kept, faults = dict(told), {}
        for node_id, verdict in guard.judge(pairs, length=length).items():
            if verdict.instead is None:
                del kept[node_id]
                faults[node_id] = f"what it tells beside the model: {verdict.reason}"
            else:
                kept[node_id] = {name: torch.from_numpy(values) for name, values in verdict.instead.items()}
        return kept, faults

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive an interruption."""
        return guard_state(self._guard)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        load_guard_state(self._guard, state)


def _as_arrays(weights: Weights) -> Arrays:
    return {name: tensor.detach().cpu().numpy() for name, tensor in weights.items()}
