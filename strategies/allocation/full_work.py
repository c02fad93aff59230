"""Clients that make all local rounds at their highest frequency and power: what it takes, and plans of it."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from . import costs
from .operating_point import ENOUGH
from .plan import Plan, make_plan
from .problem import Problem


@dataclass(frozen=True, eq=False)
class FullWork:
    """What all local rounds at the highest frequency and power take each client. All arrays have the shape ``(U,)``.

    With options it is the one with the least energy of those that are within deadline and budget.

    Attributes
    ----------
    able : np.ndarray
        Whether they are within deadline and energy budget. The rest means nothing where not.
    reason : np.ndarray
        Why not; nothing is said where `able`.
    option : np.ndarray
        Index of the option.
    joules : np.ndarray
        Energy; infinite where not `able`.
    update_seconds, upload_seconds : np.ndarray
        Time of computing and waiting, and of uploading.
    """

    able: np.ndarray
    reason: np.ndarray
    option: np.ndarray
    joules: np.ndarray
    update_seconds: np.ndarray
    upload_seconds: np.ndarray

    @property
    def seconds(self) -> np.ndarray:
        """Time in all."""
        return self.update_seconds + self.upload_seconds

    def plan(self, problem: Problem, selected: np.ndarray, reason: np.ndarray) -> Plan:
        """Return the plan in which the selected clients do so; `reason` says why the able ones are left out."""
        return make_plan(
            problem,
            selected=selected,
            local_rounds=np.full(problem.clients, problem.max_local_rounds),
            frequency_hz=problem.max_frequency_hz,
            power_watts=problem.max_power_watts,
            option=self.option,
            eligible=self.able,
            reason=np.where(self.able, reason, self.reason),
        )


def full_work(problem: Problem) -> FullWork:
    """Return what all local rounds at the highest frequency and power take each client."""
    rounds = problem.max_local_rounds
    possible = most_rounds(problem) >= rounds
    a, b, c, d = at_full_power(problem)
    joules = np.where(possible, c + rounds * d, np.inf)
    option, everybody = joules.argmin(axis=1), np.arange(problem.clients)
    spent = costs.client_costs(
        problem, everybody, option, np.array(rounds), problem.max_frequency_hz, problem.max_power_watts
    )
    late = (a + rounds * b > problem.deadline_seconds * ENOUGH).all(axis=1)
    least = joules.min(axis=1)
    return FullWork(
        able=np.isfinite(least),
        reason=np.where(late, "all rounds take too long", "all rounds take too much energy"),
        option=option,
        joules=least,
        update_seconds=spent["compute_seconds"] + spent["idle_seconds"],
        upload_seconds=spent["upload_seconds"],
    )


def able_by_cell(problem: Problem, work: FullWork) -> Iterator[tuple[int, np.ndarray, np.random.Generator]]:
    """Yield each cell, the indices of its able clients, and a generator that follows the problem's seed."""
    for cell in np.unique(problem.cell).tolist():
        yield cell, np.flatnonzero(work.able & (problem.cell == cell)), np.random.default_rng([problem.seed, cell])


def at_full_power(problem: Problem) -> tuple[np.ndarray, ...]:
    """Return a, b, c and d of shape ``(U, K)``: L local rounds take ``a + L b`` seconds and ``c + L d`` joules."""
    power, frequency = problem.max_power_watts[:, np.newaxis], problem.max_frequency_hz[:, np.newaxis]
    rate = costs.rate_bits_per_second(
        power_watts=power,
        gain=problem.gain[:, np.newaxis],
        noise_watts=problem.noise_watts,
        bandwidth_hz=problem.bandwidth_hz,
    )
    once, again = problem.payload_bits / rate, problem.payload_bits_per_local_round / rate
    cycles = problem.cycles_per_local_round
    computing = costs.compute_seconds(cycles=cycles, frequency_hz=frequency)
    return (
        problem.idle_seconds + once,
        problem.idle_seconds_per_local_round + computing + again,
        costs.upload_joules(power_watts=power, upload_seconds=once),
        costs.compute_joules(cycles=cycles, frequency_hz=frequency, capacitance=problem.capacitance)
        + costs.upload_joules(power_watts=power, upload_seconds=again),
    )


def most_rounds(problem: Problem) -> np.ndarray:
    """Return the most local rounds of each client and option, shape ``(U, K)``; 0 if not even one is possible."""
    a, b, c, d = at_full_power(problem)
    in_time = (problem.deadline_seconds * ENOUGH - a) / b
    with np.errstate(invalid="ignore"):  # Infinite cycles in an infinite budget: the time decides.
        in_budget = (problem.energy_budget_joules[:, np.newaxis] * ENOUGH - c) / d
    return np.floor(np.clip(np.fmin(in_time, in_budget), 0, problem.max_local_rounds)).astype(np.int64)
