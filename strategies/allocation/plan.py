"""A plan: who trains in the round, how hard, what it costs and why the others do not."""

from dataclasses import dataclass

import numpy as np

from .costs import client_costs
from .problem import Problem
from .single_client import value_of


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """What each of the U clients does in the round. All arrays have the shape ``(U,)``; 0 where not selected.

    Attributes
    ----------
    selected : np.ndarray
        Booleans.
    local_rounds : np.ndarray
        Integers, L_u.
    frequency_hz, power_watts : np.ndarray
        CPU frequency and transmit power.
    compute_seconds, upload_seconds, idle_seconds, compute_joules, upload_joules : np.ndarray
        What they mean, by the cost model.
    option : np.ndarray
        Index of the option, such as the cut layer; 0 if there are none.
    eligible : np.ndarray
        Booleans: could take part, in the eyes of the solver.
    reason : np.ndarray
        Strings: ``"selected"``, or why not: ``"deadline"`` or ``"energy"`` (not even one local round is possible),
        ``"overlap"`` (passed over as one of the previous round), ``"not among the best"``.
    objective : float
        As `objective` returns it.
    short_cells : tuple[int, ...]
        Cells in which fewer clients are selected than asked for.
    converged : bool
        Whether a solver that comes closer step by step came to an end, as `sca` may not; true for all others.
    """

    selected: np.ndarray
    local_rounds: np.ndarray
    frequency_hz: np.ndarray
    power_watts: np.ndarray
    compute_seconds: np.ndarray
    upload_seconds: np.ndarray
    idle_seconds: np.ndarray
    compute_joules: np.ndarray
    upload_joules: np.ndarray
    option: np.ndarray
    eligible: np.ndarray
    reason: np.ndarray
    objective: float
    short_cells: tuple[int, ...]
    converged: bool = True

    @property
    def seconds(self) -> np.ndarray:
        """Time of each client in all: computing, uploading and idling."""
        return self.compute_seconds + self.upload_seconds + self.idle_seconds

    @property
    def joules(self) -> np.ndarray:
        """Energy of each client in all: computing and uploading."""
        return self.compute_joules + self.upload_joules


def make_plan(
    problem: Problem,
    *,
    selected: np.ndarray,
    local_rounds: np.ndarray,
    frequency_hz: np.ndarray,
    power_watts: np.ndarray,
    eligible: np.ndarray,
    reason: np.ndarray,
    option: np.ndarray | int = 0,
    converged: bool = True,
) -> Plan:
    """Return the plan with the costs that the decisions mean. This is what a solver ends with.

    Parameters
    ----------
    problem : Problem
        The round's problem.
    selected, local_rounds, frequency_hz, power_watts, eligible, reason, option, converged : np.ndarray, bool
        As in `Plan`. Whatever they hold for clients who are not selected is replaced: by 0, and the reason
        ``"selected"`` by the selection itself.
    """
    who = np.flatnonzero(selected)
    option = np.broadcast_to(option, problem.clients)
    spent = client_costs(problem, who, option[who], local_rounds[who], frequency_hz[who], power_watts[who])

    def filled(values: np.ndarray | bool, kind: type = np.float64) -> np.ndarray:
        whole: np.ndarray = np.zeros(problem.clients, dtype=kind)
        whole[who] = values
        return whole

    cells, index = np.unique(problem.cell, return_inverse=True)
    taken = np.bincount(index[who], minlength=cells.size)
    value = value_of(problem, local_rounds[who], spent["compute_joules"] + spent["upload_joules"]) - problem.worth[who]
    return Plan(
        selected=filled(True, bool),
        local_rounds=filled(local_rounds[who], np.int64),
        frequency_hz=filled(frequency_hz[who]),
        power_watts=filled(power_watts[who]),
        **{name: filled(values) for name, values in spent.items()},
        option=filled(option[who], np.int64),
        eligible=eligible,
        reason=np.where(selected, "selected", reason),
        objective=_weighted(problem, value),
        short_cells=tuple(cells[taken < problem.clients_per_cell].tolist()),
        converged=converged,
    )


def objective(problem: Problem, plan: Plan) -> float:
    """Return what is minimised, ``sum_b 1/B sum_u 1/Z [-theta L_u + (1 - theta) e_u - worth_u]``.

    This is eq. 29 with equal weights, but for what a client is worth, which is 0 in the paper.
    """
    who = plan.selected
    return _weighted(problem, value_of(problem, plan.local_rounds[who], plan.joules[who]) - problem.worth[who])


def _weighted(problem: Problem, value: np.ndarray) -> float:
    return float(value.sum()) / (np.unique(problem.cell).size * problem.clients_per_cell)
