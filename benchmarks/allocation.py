"""How long the allocation of clients takes, and how close the paper's method comes to the optimum.

``python benchmarks/allocation.py`` prints, on one core and best of 5, the time of `exact` at 48, 1,000 and 100,008
clients, the time of an iteration of `sca` at 48 clients, and the gap of `sca`'s objective to the optimum over 50
instances at a deadline of 150 s and of 2 s. The instances are drawn from the setting of the RawHFL paper.
"""

from collections.abc import Callable
from time import perf_counter

import numpy as np

from espalier.strategies.allocation import SCA, Plan, Problem, exact

RUNS = 5
INSTANCES = 50


def paper_problem(*, seed: int, cells: int = 4, clients_in_cell: int = 12, **changes: object) -> Problem:
    """Return an edge round of the paper's setting (RawHFL, Sec. V-A), Z = 4 and no previous round by default.

    Clients are uniform in a disk of 400 m; path loss and line of sight are those of 3GPP TR 38.901, urban macro.
    """
    rng = np.random.default_rng(seed)
    clients = cells * clients_in_cell
    across = np.sqrt(rng.uniform(10**2, 400**2, clients))
    along = np.hypot(across, 25 - 1.5)
    near = 28 + 22 * np.log10(along) + 20 * np.log10(2.4)
    breakpoint_ = 4 * (25 - 1) * (1.5 - 1) * 2.4e9 / 299_792_458
    far = 28 + 40 * np.log10(along) + 20 * np.log10(2.4) - 9 * np.log10(breakpoint_**2 + (25 - 1.5) ** 2)
    in_sight = np.where(across <= breakpoint_, near, far)
    hidden = np.maximum(in_sight, 13.54 + 39.08 * np.log10(along) + 20 * np.log10(2.4))
    chance = np.where(across <= 18, 1, 18 / across + np.exp(-across / 63) * (1 - 18 / across))
    sees = rng.random(clients) < chance
    loss_db = np.where(sees, in_sight, hidden) + rng.normal(0, np.where(sees, 4, 6))
    values = {
        "gain": 10 ** (-loss_db / 10),
        "max_frequency_hz": rng.uniform(1.2e9, 2e9, clients),
        "max_power_watts": 10 ** (rng.uniform(20, 30, clients) / 10 - 3),
        "energy_budget_joules": rng.uniform(0.8, 1.5, clients),
        "cycles_per_local_round": 10 * 32 * 43 * 32 * rng.uniform(25, 40, clients),
        "payload_bits": 219_648 * 33,
        "clients_per_cell": 4,
        "deadline_seconds": 150.0,
        "max_local_rounds": 50,
        "bandwidth_hz": 540e3,
        "noise_watts": 10 ** (-174 / 10 - 3) * 540e3,
        "capacitance": 2e-28,
        "theta": 0.4,
        "cell": np.repeat(np.arange(cells), clients_in_cell),
    }
    return Problem(**values | changes)


def best_seconds(solve: Callable[[Problem], Plan], problem: Problem) -> float:
    """Return the shortest time of a few runs, after one that is not timed."""
    solve(problem)
    times = []
    for _ in range(RUNS):
        start = perf_counter()
        solve(problem)
        times.append(perf_counter() - start)
    return min(times)


def main() -> None:
    """Measure and print."""
    deadlines_seconds = 150.0, 2.0
    print(f"{'deadline':28}" + "".join(f"{deadline:10g} s" for deadline in deadlines_seconds))
    for cells, clients_in_cell in ((4, 12), (50, 20), (8334, 12)):
        problems = [
            paper_problem(seed=1, cells=cells, clients_in_cell=clients_in_cell, deadline_seconds=deadline)
            for deadline in deadlines_seconds
        ]
        times = "".join(f"{best_seconds(exact, problem) * 1e3:9.2f} ms" for problem in problems)
        print(f"{f'exact, {cells * clients_in_cell:,} clients':28}{times}")
    sca, rows = SCA(), {"sca, 48 clients, a solution": [], "sca, an iteration": [], "sca, iterations": []}
    gaps = []
    for deadline in deadlines_seconds:
        problem = paper_problem(seed=1, deadline_seconds=deadline)
        seconds = best_seconds(sca, problem)
        rows["sca, 48 clients, a solution"].append(f"{seconds * 1e3:9.2f} ms")
        rows["sca, an iteration"].append(f"{seconds / sca.iterations * 1e3:9.2f} ms")
        rows["sca, iterations"].append(f"{sca.iterations:9}   ")
        instances = [paper_problem(seed=seed, deadline_seconds=deadline) for seed in range(INSTANCES)]
        pairs = [(exact(problem).objective, sca(problem).objective) for problem in instances]
        gaps.append([(found - optimum) / abs(optimum) for optimum, found in pairs])
    for name, cells in rows.items():
        print(f"{name:28}{''.join(cells)}")
    for name, statistic in (("median", np.median), ("max", np.max)):
        print(f"{f'sca over exact, {name} gap':28}" + "".join(f"{statistic(gap):12.1e}" for gap in gaps))


if __name__ == "__main__":
    main()
