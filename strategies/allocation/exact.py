"""The global optimum of the round's problem."""

import numpy as np

from .plan import Plan, make_plan
from .problem import Problem
from .selection import choose, why_not
from .single_client import BestChoice, best_choice


def exact(problem: Problem) -> Plan:
    """Return the plan with the least objective that breaks no limit.

    Everything but the selection decouples over the clients, and the selections form a matroid: give every client its
    best choice, then take the best clients of each cell.

    A cell in which fewer than Z clients can take part within the limits gets all who can, and the plan names it.

    Parameters
    ----------
    problem : Problem
        The round's problem.
    """
    best = best_choice(problem)
    selected, skipped = choose(problem, best.eligible, best.value, best.point.joules)
    return with_best_choices(problem, best, selected, why_not(best.eligible, best.reason, skipped))


def with_best_choices(problem: Problem, best: BestChoice, selected: np.ndarray, reason: np.ndarray) -> Plan:
    """Return the plan in which the selected clients make their best choices."""
    return make_plan(
        problem,
        selected=selected,
        local_rounds=best.local_rounds,
        frequency_hz=best.point.frequency_hz,
        power_watts=best.point.power_watts,
        option=best.option,
        eligible=best.eligible,
        reason=reason,
    )
