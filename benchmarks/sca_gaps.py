"""How far the paper's method stays above the optimum on hard instances, and how often it stops before it converged.

``python -m benchmarks.sca_gaps --csv PATH`` solves 120 instances of each of four kinds by `exact` and by `sca` and
prints a table: tight deadlines, tiny energy budgets, cells in which some clients are equal, and a theta near 1. All
have 48 clients in four cells, a previous round and a limit on the overlap with it. A row is written for each instance,
with the seed that it is drawn from, the commit and the machine; the table has those in which anyone can take part.
"""

import csv
import platform
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.allocation import paper_problem
from espalier.app.reports.made_by import maker
from espalier.strategies.allocation import SCA, Problem, exact

INSTANCES = 120
CELLS, CLIENTS_IN_CELL, COPIES = 4, 12, 4
CLIENTS = CELLS * CLIENTS_IN_CELL
COLUMNS = ("kind", "seed", "optimum", "gap", "iterations", "converged", "commit", "machine")

Row = dict[str, Any]


def tight_deadline(rng: np.random.Generator) -> dict[str, Any]:
    """Return a deadline that most clients just meet, or just don't."""
    return {"deadline_seconds": rng.uniform(0.5, 1.5)}


def tiny_budgets(rng: np.random.Generator) -> dict[str, Any]:
    """Return energy budgets that allow some clients many local rounds, and others none."""
    return {"deadline_seconds": 5.0, "energy_budget_joules": 10 ** rng.uniform(-3, 0, CLIENTS)}


def equal_clients(rng: np.random.Generator) -> dict[str, Any]:
    """Return cells in which there are four of each client, so that many plans are equally good."""
    seed, few_in_cell = int(rng.integers(2**31)), CLIENTS_IN_CELL // COPIES
    few = paper_problem(seed=seed, cells=CELLS, clients_in_cell=few_in_cell, clients_per_cell=1)
    names = ("gain", "max_frequency_hz", "max_power_watts", "energy_budget_joules", "cycles_per_local_round")
    copies = {name: np.repeat(getattr(few, name), COPIES, axis=0) for name in names}
    return {"deadline_seconds": 2.0, **copies}


def theta_near_1(rng: np.random.Generator) -> dict[str, Any]:
    """Return a theta with which energy hardly counts, or not at all."""
    return {"deadline_seconds": rng.uniform(1.0, 3.0), "theta": rng.choice([0.9, 0.99, 1.0])}


KINDS: dict[str, Callable[[np.random.Generator], dict[str, Any]]] = {
    "deadlines of 0.5 to 1.5 s": tight_deadline,
    "budgets of 1 mJ to 1 J": tiny_budgets,
    "four of each client": equal_clients,
    "theta of 0.9 to 1": theta_near_1,
}


def hard_problem(kind: str, seed: int) -> Problem:
    """Return an instance of one of `KINDS`."""
    rng = np.random.default_rng(seed)
    before = {"previous": rng.random(CLIENTS) < 1 / 3, "max_overlap": int(rng.integers(1, 4))}
    return paper_problem(seed=seed, **before, **KINDS[kind](rng))


def row_of(kind: str, seed: int) -> Row:
    """Solve an instance by both solvers and return its row; the gap is relative to the optimum."""
    problem, solver = hard_problem(kind, seed), SCA()
    optimum, found = exact(problem).objective, solver(problem)
    gap = (found.objective - optimum) / abs(optimum) if optimum else found.objective
    return {
        "kind": kind,
        "seed": seed,
        "optimum": float(f"{optimum:.6g}"),
        "gap": float(f"{gap:.3g}"),
        "iterations": solver.iterations,
        "converged": found.converged,
        "commit": maker()["commit"],
        "machine": platform.processor() or platform.machine(),
    }


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a CSV file."""
    kinds: dict[str, Callable[[str], Any]] = {"seed": int, "optimum": float, "gap": float, "iterations": int}
    kinds["converged"] = "True".__eq__
    with path.open(newline="", encoding="utf-8") as file:
        return [{key: kinds.get(key, str)(value) for key, value in row.items()} for row in csv.DictReader(file)]


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of the docs' table, the last one over all kinds; a plan of nobody has the value 0, and no gap."""
    yield "| instances | number | median | 90 % | 99 % | largest | not converged |"
    yield "|---|---|---|---|---|---|---|"
    for kind in (*KINDS, "all"):
        own = [row for row in rows if kind in (row["kind"], "all") and row["optimum"]]
        gaps = [max(0.0, row["gap"]) for row in own]
        shown = " | ".join(f"{value:.1e}" for value in np.quantile(gaps, (0.5, 0.9, 0.99, 1.0)))
        yield f"| {kind} | {len(own)} | {shown} | {sum(not row['converged'] for row in own)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Solve all instances, write their rows and print the table."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--instances", type=int, default=INSTANCES)
    given = parser.parse_args(arguments)
    rows = [row_of(kind, seed) for kind in KINDS for seed in range(given.instances)]
    if given.csv:
        with given.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
