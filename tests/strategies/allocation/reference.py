"""The round's problem solved another way: grids that zoom in, and enumeration."""

from itertools import combinations

import numpy as np

from espalier.strategies.allocation import Problem


def least_joules(
    *, cycles, bits, seconds, gain, noise_watts, bandwidth_hz, capacitance, max_frequency_hz, max_power_watts,
    min_frequency_hz=0.0,
):  # fmt: skip
    """Return the least energy of one client from ever finer grids of the computing time; infinite if time is short."""
    fastest_upload = bits / (bandwidth_hz * np.log2(1 + gain * max_power_watts / noise_watts))
    low, high = cycles / max_frequency_hz, seconds - fastest_upload
    if min_frequency_hz > 0:
        high = min(high, cycles / min_frequency_hz)
    if low > high or fastest_upload + low > seconds:
        return np.inf
    for _ in range(12):
        t = np.linspace(low, high, 101)
        joules = capacitance / 2 * cycles * (cycles / t) ** 2
        tau = np.maximum(seconds - t, fastest_upload)
        joules = joules + tau * noise_watts / gain * (2 ** (bits / (bandwidth_hz * tau)) - 1)
        best = int(joules.argmin())
        low, high = t[max(best - 1, 0)], t[min(best + 1, 100)]
    return float(joules.min())


def joules_of(problem: Problem, client: int, option: int, rounds: int) -> float:
    """Return the least energy of `rounds` local rounds, infinite where that breaks a limit."""
    joules = least_joules(
        cycles=rounds * problem.cycles_per_local_round[client, option],
        bits=problem.payload_bits[client, option] + rounds * problem.payload_bits_per_local_round[client, option],
        seconds=problem.deadline_seconds
        - problem.idle_seconds[client, option]
        - rounds * problem.idle_seconds_per_local_round[client, option],
        gain=problem.gain[client],
        noise_watts=problem.noise_watts,
        bandwidth_hz=problem.bandwidth_hz,
        capacitance=problem.capacitance,
        max_frequency_hz=problem.max_frequency_hz[client],
        max_power_watts=problem.max_power_watts[client],
        min_frequency_hz=problem.min_frequency_hz[client],
    )
    return joules if joules <= problem.energy_budget_joules[client] else np.inf


def values(problem: Problem) -> np.ndarray:
    """Return ``-theta L + (1 - theta) e`` of shape ``(U, K, L)``, infinite where that breaks a limit."""
    rounds = np.arange(1, problem.max_local_rounds + 1)
    joules = np.array(
        [
            [[joules_of(problem, client, option, r) for r in rounds] for option in range(problem.options)]
            for client in range(problem.clients)
        ]
    )
    weighted = (1 - problem.theta) * np.where(np.isfinite(joules), joules, 0)
    return np.where(np.isfinite(joules), weighted - problem.theta * rounds, np.inf)


def best_objective(problem: Problem) -> float:
    """Return the least objective over all subsets, options and rounds; as many clients of a cell as Z allows."""
    best = values(problem).min(axis=(1, 2)) - problem.worth
    cells = np.unique(problem.cell)
    total = 0.0
    for cell in cells:
        able = [u for u in range(problem.clients) if problem.cell[u] == cell and np.isfinite(best[u])]
        for count in range(problem.clients_per_cell, -1, -1):
            groups = combinations(able, count)
            allowed = [group for group in groups if overlap(problem, group) <= most_overlap(problem)]
            if allowed:
                total += min(sum(best[u] for u in group) for group in allowed)
                break
    return total / len(cells) / problem.clients_per_cell


def overlap(problem: Problem, group: tuple[int, ...]) -> int:
    """Return how many of a group were selected in the previous round."""
    return 0 if problem.previous is None else int(problem.previous[list(group)].sum())


def most_overlap(problem: Problem) -> int:
    """Return Psi, or as many clients as there are."""
    return problem.clients if problem.max_overlap is None else problem.max_overlap
