"""The edge's half of an algorithm, beside a strategy that averages models."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord

from espalier.clients.shared.arrays import to_record, to_weights
from espalier.clients.shared.correction import Weights
from espalier.clients.shared.tensor_array import record_by_reference
from espalier.clients.shared.text import quoted

from .guards.updates import UpdateGuard, guard_state, load_guard_state
from .reply_faults import array_fault


class EdgeHalf:
    """What goes to clients beside the model, and what is made of what they tell; the default is nothing.

    A subclass whose attributes are numbers, or weights by name, is saved as it is.
    """

    def sent(self) -> Weights:
        """Return what goes to every client of a round beside the model, by the names of the model's weights."""
        return {}

    def learn(self, told: Mapping[int, Weights], num_clients: int) -> None:
        """Take note of what clients told.

        Parameters
        ----------
        told : Mapping[int, Mapping[str, Tensor]]
            By node id, in client order, of those whose models are part of the average.
        num_clients : int
            How many clients the edge has.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive an interruption."""
        return {name: to_record(v) if isinstance(v, Mapping) else v for name, v in vars(self).items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        for name, value in state.items():
            setattr(self, name, to_weights(value) if isinstance(value, ArrayRecord) else value)


def told_fault(told: ArrayRecord | None, model: ArrayRecord) -> str:
    """Return why what a client told can't be of a model, or an empty string: it has arrays like some of the model's."""
    told = told or ArrayRecord()
    if len(told) > len(model):
        return f"it tells {len(told)} arrays beside the model, expected {len(model)} at most"
    if unknown := [name for name in told if name not in model]:
        return f"it tells {quoted(unknown[0])} beside the model, which has no such array"
    return array_fault(told, record_by_reference({name: model[name] for name in told}))


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
        if self._own is None and (guard := self._guard_of_edge()) is not None:
            self._own = UpdateGuard(guard.guard, guard.node_name)
        return self._own

    def within_bounds(self, told: Mapping[int, Weights]) -> tuple[dict[int, Weights], dict[int, str]]:
        """Return what is kept of what clients told, and why whose is not."""
        if self._guard is None:
            return dict(told), {}
        values = {n: {name: tensor.detach().cpu().numpy() for name, tensor in own.items()} for n, own in told.items()}
        pairs = {n: ({name: np.zeros_like(v) for name, v in own.items()}, own) for n, own in values.items() if own}
        kept, faults = dict(told), {}
        for node_id, verdict in self._guard.judge(pairs).items():
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
