"""What it is worth to select a client, apart from its rounds and joules: its loss, its turn, its battery, or other.

A plan's objective is ``-theta * local rounds + (1 - theta) * joules`` of each selected client. What the client is worth
is taken off it, so the selection stays a matroid's base and the optimum stays one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import numpy as np

from espalier.app.ground.errors import FAULTS, bad_value
from espalier.app.ground.object_spec import error_line
from espalier.app.settings.sections import Plans
from espalier.strategies.allocation import Problem, Standing
from espalier.strategies.allocation.oort import statistical_utility

# What an empty battery counts as: `Problem` allows no budget of 0, and every round takes more than this.
NOTHING_JOULES = float(np.finfo(float).tiny)


Value = Callable[[Standing], np.ndarray]


def loss_value(standing: Standing) -> np.ndarray:
    """Return the statistical utility of Oort (Lai et al., OSDI 2021), as a share of the largest of these clients.

    ``|B| sqrt(mean loss^2)`` over the examples B of a local round. Clients tell one loss for all of them, their mean,
    so the root of the mean square is that loss's amount. Who has told none yet counts like the largest.
    """
    utility = statistical_utility(standing)
    largest = np.nanmax(utility, initial=0.0)
    return np.where(np.isnan(utility), 1.0, utility / largest if largest > 0 else 0.0)


def age_value(standing: Standing) -> np.ndarray:
    """Return the edge rounds since each client was selected last."""
    return standing.age.astype(float)


def battery_value(standing: Standing) -> np.ndarray:
    """Return what is left in the batteries, as a share of a full one."""
    return standing.battery_share


VALUES: Mapping[str, Value | None] = {
    "uniform": None,
    "loss": loss_value,
    "age": age_value,
    "battery": battery_value,
}


def value_of(plan: Plans) -> Value | None:
    """Return the function that ``plan.value`` names, None for clients that are all worth the same.

    Raises
    ------
    UserError
        If it names one that can't be imported, or that is no function.
    """
    spec = plan.value
    if not spec.module:
        return VALUES[spec.name]
    found = spec.load()
    if not callable(found):
        raise bad_value(spec.key, spec.text, f"a function of a Standing, not a {type(found).__name__}")
    return partial(found, **dict(spec.parameters)) if spec.parameters else found


@dataclass
class Book:
    """What an edge keeps of its clients from round to round, by client number.

    Parameters
    ----------
    losses : dict[int, float]
        The last mean training loss of those who told one.
    selected : dict[int, int]
        Number of the last edge round of those who were selected.
    joules : dict[int, float]
        What those spent who were selected.
    accuracies : dict[int, float]
        The last accuracy of those who told one.
    """

    losses: dict[int, float] = field(default_factory=dict)
    selected: dict[int, int] = field(default_factory=dict)
    joules: dict[int, float] = field(default_factory=dict)
    accuracies: dict[int, float] = field(default_factory=dict)

    def add(self, edge_round: int, clients: Sequence[int], joules: Sequence[float]) -> None:
        """Note who was selected in an edge round, and what each spent."""
        for client, spent in zip(clients, joules, strict=True):
            self.selected[client] = edge_round
            self.joules[client] = self.joules.get(client, 0.0) + spent

    def standing(self, edge_round: int, clients: np.ndarray, examples: np.ndarray, battery_joules: float) -> Standing:
        """Return what is known of these clients before an edge round; a battery of 0 joules is none."""
        numbers = clients.tolist()
        joules = np.array([self.joules.get(client, 0.0) for client in numbers])
        left = np.maximum(battery_joules - joules, 0.0) if battery_joules else np.full(len(numbers), np.inf)
        return Standing(
            edge_round=edge_round,
            clients=clients,
            examples=examples,
            loss=np.array([self.losses.get(client, np.nan) for client in numbers]),
            age=np.array([edge_round - self.selected.get(client, 0) for client in numbers]),
            joules=joules,
            battery_joules=left,
            battery_share=left / battery_joules if battery_joules else np.ones(len(numbers)),
            accuracy=np.array([self.accuracies.get(client, np.nan) for client in numbers]),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive an interruption."""
        return {own.name: dict(getattr(self, own.name)) for own in fields(self)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        for own in fields(self):
            setattr(self, own.name, dict(state.get(own.name, {})))


def valued(problem: Problem, plan: Plans, value: Value | None, standing: Standing) -> Problem:
    """Return the problem with what is known of its clients and what they are worth, and no budget above a battery.

    Raises
    ------
    UserError
        If a function of the user's own fails, or returns anything but a finite number for each client.
    """
    changes: dict[str, Any] = {"standing": standing}
    if plan.battery_joules:
        left = np.maximum(standing.battery_joules, NOTHING_JOULES)
        changes["energy_budget_joules"] = np.minimum(problem.energy_budget_joules, left)
    if value is not None:
        changes["worth"] = plan.value_weight * _checked(plan, value, standing)
    return replace(problem, **changes)


def _checked(plan: Plans, value: Value, standing: Standing) -> np.ndarray:
    try:
        worth = np.asarray(value(standing), dtype=float)
    except FAULTS as error:  # it may be foreign code
        allowed = f"a function that does not fail ({error_line(error)})"
        raise bad_value(plan.value.key, plan.value.text, allowed) from None
    if worth.shape != standing.clients.shape or not np.isfinite(worth).all():
        allowed = f"a function that returns {len(standing.clients)} finite numbers, one for each client"
        raise bad_value(plan.value.key, plan.value.text, allowed)
    return worth
