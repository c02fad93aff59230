"""Rules to compare with: random selection, the cheapest clients at full power, and H-FedAvg (RawHFL, Sec. V-C).

Full power is the highest CPU frequency and transmit power; with options, each client then takes the one with the least
energy that allows the rounds. H-FedAvg has everybody train so. Its plans select more than Z clients in a cell.
"""

import numpy as np

from .exact import with_best_choices
from .full_work import at_full_power, full_work, most_rounds
from .operating_point import ENOUGH
from .plan import Plan, make_plan
from .problem import Problem
from .selection import choose, why_not
from .single_client import best_choice


def random(problem: Problem) -> Plan:
    """Select Z eligible clients of each cell at random, with the local rounds and operating points of `exact`.

    The limit on the overlap holds. The draw depends on `problem.seed` and the number of clients only.
    """
    best = best_choice(problem)
    lots = np.random.default_rng(problem.seed).random(problem.clients)
    selected, skipped = choose(problem, best.eligible, lots)
    reason = np.where(best.eligible & ~skipped, "not drawn", why_not(best.eligible, best.reason, skipped))
    return with_best_choices(problem, best, selected, reason)


def cheapest_at_full_power(problem: Problem) -> Plan:
    """Select in each cell the Z clients with the least energy of those who can make all rounds at full power.

    Everybody selected makes `max_local_rounds`. Neither theta nor what clients are worth plays a part; the limit on the
    overlap holds, and with it the joules of each cell are the least that full power allows. A cell in which fewer than
    Z clients can make all rounds within deadline and budgets gets all who can, even where more could make a few.
    """
    work = full_work(problem)
    selected, skipped = choose(problem, work.able, work.joules)
    return work.plan(problem, selected, why_not(work.able, work.reason, skipped))


def h_fedavg_m1(problem: Problem) -> Plan:
    """Return the plan of H-FedAvg-M1: all clients make the most local rounds that all of them can.

    If one client of any cell cannot make a single one, nobody trains in the round.
    """
    most = most_rounds(problem)
    everybody = np.full(problem.clients, bool(most.max(axis=1).min() >= 1))
    return _together(problem, everybody, most)


def h_fedavg_m2(problem: Problem) -> Plan:
    """Return the plan of H-FedAvg-M2: who cannot make a single local round is dropped.

    The others, of all cells, make the most local rounds that all of them can.
    """
    most = most_rounds(problem)
    return _together(problem, most.max(axis=1) >= 1, most)


def h_fedavg_ub(problem: Problem) -> Plan:
    """Return the plan of H-FedAvg-UB: all clients make `max_local_rounds`, whatever deadline and energy budgets say."""
    unlimited = np.full((problem.clients, problem.options), problem.max_local_rounds)
    return _together(problem, np.ones(problem.clients, dtype=bool), unlimited)


def eligible_at_full_power(problem: Problem) -> np.ndarray:
    """Return who can make a local round at the highest frequency and power within deadline and budget (Fig. 5a).

    Returns
    -------
    np.ndarray
        Booleans of shape ``(U,)``. `exact` may find more clients eligible: lower frequency and power take less energy.
    """
    return most_rounds(problem).max(axis=1) >= 1


def full_work_at_full_power(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Return what all local rounds take at the highest frequency and power.

    Returns
    -------
    tuple[np.ndarray, np.ndarray]
        Seconds and joules of ``max_local_rounds`` local rounds by each option, of shape ``(U, K)``. Where they are
        within deadline and budget for all clients, neither limit changes what `h_fedavg_m1` and `h_fedavg_m2` do.
    """
    a, b, c, d = at_full_power(problem)
    return a + problem.max_local_rounds * b, c + problem.max_local_rounds * d


def _together(problem: Problem, who: np.ndarray, most: np.ndarray) -> Plan:
    """Return the plan in which all of `who` make the most local rounds that all of them can."""
    able = most.max(axis=1)
    rounds = able[who].min(initial=problem.max_local_rounds)
    a, b, c, d = at_full_power(problem)
    late = (a + b > problem.deadline_seconds * ENOUGH).all(axis=1)
    limit = np.where(late, "deadline", "energy at full power")
    return make_plan(
        problem,
        selected=who,
        local_rounds=np.full(problem.clients, rounds),
        frequency_hz=problem.max_frequency_hz,
        power_watts=problem.max_power_watts,
        option=np.where(most >= rounds, c + rounds * d, np.inf).argmin(axis=1),
        eligible=able >= 1,
        reason=np.where(able >= 1, "another client cannot take part", limit),
    )
