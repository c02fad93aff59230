"""The part of a problem that the config decides, and what it may not ask for."""

from math import inf
from typing import Any

import numpy as np

from espalier.app.ground.errors import bad_value
from espalier.app.planning.rule import PlanRule, kind_of
from espalier.app.planning.world import PlannedWorld
from espalier.app.settings.sections import Plans
from espalier.strategies.allocation import full_work_at_full_power
from espalier.strategies.allocation.feasibility import least_seconds
from espalier.strategies.allocation.problem import not_again

TRIED_ROUNDS = 20  # in one of which somebody must be able to take part for a run to start


def limits_of(plan: Plans, cell: np.ndarray, previous: np.ndarray | None, everybodys: np.ndarray) -> dict[str, Any]:
    """Return the part of a `Problem` that the config decides, for the clients that are there.

    Parameters
    ----------
    plan : Plans
        Section of the run config.
    cell, previous : np.ndarray
        Of these clients, as in the `Problem`.
    everybodys : np.ndarray
        The cells of all clients, there or not.
    """
    cells, sizes = np.unique(cell, return_counts=True)
    to_select = min(plan.asked_per_cell, int(sizes.min()))
    overlap, whole = plan.max_overlap, int(np.bincount(everybodys)[cells].min())
    if overlap < 0:
        overlap = max(plan.asked_per_cell // 2, least_overlap(plan.asked_per_cell, whole))
    # With clients missing, others may have to come twice.
    overlap = max(overlap, to_select - int(not_again(cell, previous).min()))
    return {
        "clients_per_cell": to_select,
        "max_overlap": overlap if bounds_overlap(plan) else None,
        "deadline_seconds": plan.planned_seconds,
        "max_local_rounds": plan.max_local_rounds,
        "theta": plan.theta,
    }


def bounds_overlap(plan: Plans) -> bool:
    """Return whether the solver selects no more clients a second time than ``plan.max-overlap`` says."""
    kind = kind_of(plan.solver)
    return kind is None or "max_overlap" not in kind.ignores


def least_overlap(asked: int, size: int) -> int:
    """Return how many clients must come twice where so many of a cell's are selected in every round."""
    return max(0, 2 * min(asked, size) - size)


def check_deadline(plan: Plans, world: PlannedWorld) -> None:
    """Raise UserError where no client could make one local round before the deadline in any of the first edge rounds.

    One in which nobody can is skipped, as channels are drawn anew: another seed's first would have gone.
    """
    if not world.rule.has_limits:
        return
    fastest = inf
    for edge_round in range(1, TRIED_ROUNDS + 1):
        fastest = min(fastest, float(least_seconds(world.problem(edge_round, world.everybody, None, 0)).min()))
        if fastest <= plan.planned_seconds:
            return
    kept = f" in {plan.planned_seconds:.3g} s (plan.margin)" if plan.margin else ""
    allowed = f"more: the fastest client needs {fastest:.3g} s for one local round{kept}"
    raise bad_value("plan.deadline-seconds", plan.deadline_seconds, allowed)


def free_of_limits(world: PlannedWorld, battery_joules: float, num_rounds: int) -> str:
    """Return a line that says that deadline and energy budgets bind nobody; nothing where they do, or none is kept.

    They bind a client that can't make all local rounds at its highest frequency and power, in one of the first edge
    rounds of so many. A battery, of which 0 is none, may bind it in any round.
    """
    if not world.rule.has_limits or battery_joules:
        return ""
    seconds, joules, num_tried = [], [], min(num_rounds, TRIED_ROUNDS)
    for edge_round in range(1, num_tried + 1):
        problem = world.problem(edge_round, world.everybody, None, 0)
        takes, costs = full_work_at_full_power(problem)
        if (takes > problem.deadline_seconds).any() or (problem.energy_budget_joules < costs.T).any():
            return ""
        seconds.append(takes)
        joules.append(costs)
    return (
        f"limits bind nobody in edge rounds 1 to {num_tried}: at full frequency and power all local rounds take "
        f"{np.median(seconds):.2g} s (median, at most {np.max(seconds):.2g}) of {problem.deadline_seconds:.3g} s and "
        f"{np.median(joules):.2g} J (at most {np.max(joules):.2g}) of {problem.energy_budget_joules.min():.3g} J; "
        "lower ones, as in docs/radio.md, tell apart algorithms that differ by limits alone"
    )


def check_cell_size(plan: Plans, rule: PlanRule, smallest: int) -> None:
    """Raise UserError for a number of clients to select, or an overlap, that a cell of this size can't have."""
    if not rule.selects_a_number:
        return
    z, asked = plan.selected_per_edge, plan.asked_per_cell
    if z > smallest:
        raise bad_value("plan.selected-per-edge", z, f"1 to {smallest}, the clients of the smallest cell")
    if asked > smallest:
        why = f"as the smallest cell has {smallest} clients and plan.selected-per-edge is {z}"
        raise bad_value("plan.spare", plan.spare, f"0 to {smallest - z}, {why}")
    least = least_overlap(asked, smallest)
    if 0 <= plan.max_overlap < least and bounds_overlap(plan):
        why = f"with {asked} of {smallest} clients selected in every round"
        raise bad_value("plan.max-overlap", plan.max_overlap, f"at least {least} {why}, or -1 for half of them")
