"""What is best for each client by itself: apart from the selection, the clients do not touch each other."""

from dataclasses import dataclass

import numpy as np

from .operating_point import OperatingPoint, best_operating_point
from .problem import Problem

# Plans leave this share of the deadline unused, so that rounding in a sum of times never makes a client late.
USED = 1 - 1e-12


@dataclass(frozen=True, eq=False)
class BestChoice:
    """The best choice of every client, were it selected. All arrays have the shape ``(U,)``.

    Attributes
    ----------
    eligible : np.ndarray
        Whether the client can make at least one local round within its limits. The rest means nothing where not.
    reason : np.ndarray
        Why not, ``"deadline"`` or ``"energy"``; empty where eligible.
    option, local_rounds : np.ndarray
        Integers.
    point : OperatingPoint
        The least energy for them.
    value : np.ndarray
        ``-theta local_rounds + (1 - theta) joules - worth``: what selecting the client adds to the objective, but for
        the weights that all clients share.
    """

    eligible: np.ndarray
    reason: np.ndarray
    option: np.ndarray
    local_rounds: np.ndarray
    point: OperatingPoint
    value: np.ndarray


def least_energy(problem: Problem, client: np.ndarray, option: np.ndarray, local_rounds: np.ndarray) -> OperatingPoint:
    """Return the operating points with which clients make `local_rounds` in time with the least energy.

    The energy budget is not looked at.

    Parameters
    ----------
    problem : Problem
        The round's problem.
    client, option, local_rounds : np.ndarray
        Indices of clients and of their options, and local rounds; any shapes that broadcast.
    """
    bits = problem.payload_bits[client, option] + local_rounds * problem.payload_bits_per_local_round[client, option]
    return best_operating_point(
        cycles=local_rounds * problem.cycles_per_local_round[client, option],
        bits=bits,
        seconds=busy_seconds(problem, client, option, local_rounds),
        gain=problem.gain[client],
        noise_watts=problem.noise_watts,
        bandwidth_hz=problem.bandwidth_hz,
        capacitance=problem.capacitance,
        max_frequency_hz=problem.max_frequency_hz[client],
        max_power_watts=problem.max_power_watts[client],
        min_frequency_hz=problem.min_frequency_hz[client],
    )


def busy_seconds(problem: Problem, client: np.ndarray, option: np.ndarray, local_rounds: np.ndarray) -> np.ndarray:
    """Return the time that a plan may give to computing and uploading; arguments as for `least_energy`."""
    idle = problem.idle_seconds[client, option] + local_rounds * problem.idle_seconds_per_local_round[client, option]
    return problem.deadline_seconds * USED - idle


def value_of(problem: Problem, local_rounds: np.ndarray, joules: np.ndarray) -> np.ndarray:
    """Return ``-theta L + (1 - theta) e``, infinite where the energy is."""
    # Not the plain formula: at theta = 1 it would multiply infinity by 0.
    possible = np.isfinite(joules)
    weighted = (1 - problem.theta) * np.where(possible, joules, 0) - problem.theta * local_rounds
    return np.where(possible, weighted, np.inf)


def value_in_budget(problem: Problem, client: np.ndarray, local_rounds: np.ndarray, joules: np.ndarray) -> np.ndarray:
    """Return what `value_of` does, infinite where the energy is more than the clients' budget."""
    return value_of(problem, local_rounds, np.where(joules <= problem.energy_budget_joules[client], joules, np.inf))


def best_rounds(problem: Problem, client: np.ndarray, option: np.ndarray) -> np.ndarray:
    """Return the number of local rounds with the least value, 1 also where not even one is possible.

    The least energy is convex and increases in the number of rounds L: computing and uploading energy are perspectives
    of convex functions, and cycles, bits and idle time are affine in L. So the possible L are 1 up to some number, the
    value is convex in L, and bisection on its differences finds the minimum.

    Parameters
    ----------
    problem : Problem
        The round's problem.
    client, option : np.ndarray
        Indices of clients and of their options, of one shape ``(n,)``.
    """
    low, high = np.ones(client.size, dtype=np.int64), np.full(client.size, problem.max_local_rounds)
    # Where the deadline is generous the most rounds are best: look there first.
    middle, open_ = high - 1, np.flatnonzero(low < high)
    while open_.size:
        pair = np.stack([middle[open_], middle[open_] + 1])
        joules = least_energy(problem, client[open_], option[open_], pair).joules
        here, above = value_in_budget(problem, client[open_], pair, joules)
        rises = above < here
        low[open_] = np.where(rises, pair[1], low[open_])
        high[open_] = np.where(rises, high[open_], pair[0])
        open_ = open_[low[open_] < high[open_]]
        middle = (low + high) // 2
    return low


def best_choice(problem: Problem) -> BestChoice:
    """Return the best option, local rounds and operating point of every client."""
    shape = problem.clients, problem.options
    client, option = (index.ravel() for index in np.indices(shape))
    rounds = best_rounds(problem, client, option)
    point = least_energy(problem, client, option, rounds)
    value = value_in_budget(problem, client, rounds, point.joules)
    first = np.lexsort((point.joules.reshape(shape), value.reshape(shape)))[:, 0]
    best = np.arange(problem.clients) * problem.options + first
    eligible, reason = _verdict(problem, point.joules.reshape(shape))
    return BestChoice(
        eligible=eligible,
        reason=reason,
        option=first,
        local_rounds=rounds[best],
        point=OperatingPoint(*(values[best] for values in vars(point).values())),
        # The same for all options and rounds of a client, so the best ones do not depend on it.
        value=value[best] - problem.worth,
    )


def eligibility(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Return who can make at least one local round within its limits, and why the others cannot.

    Returns
    -------
    tuple[np.ndarray, np.ndarray]
        Booleans, and ``"deadline"``, ``"energy"`` or an empty string where eligible; both of shape ``(U,)``.
    """
    client, option = np.indices((problem.clients, problem.options))
    return _verdict(problem, least_energy(problem, client, option, np.array(1)).joules)


def _verdict(problem: Problem, joules: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Do the same given the least energies, ``(U, K)``, of one local round or of as many as are within the limits."""
    in_time = np.isfinite(joules)
    eligible = (in_time & (joules <= problem.energy_budget_joules[:, np.newaxis])).any(axis=1)
    return eligible, np.where(eligible, "", np.where(in_time.any(axis=1), "energy", "deadline"))
