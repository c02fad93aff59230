"""Problems of one cell with what earlier rounds have shown, as the tests of methods that look back need."""

from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.allocation import paper_problem
from espalier.strategies.allocation import Problem
from espalier.strategies.allocation.standing import nothing_known


def problem_of(clients: int, seed: int, wanted: int, **known: Any) -> Problem:
    """Return a problem of one cell in which everybody is able, with some of its standing given."""
    problem = paper_problem(
        seed=seed, cells=1, clients_in_cell=clients, clients_per_cell=wanted,
        deadline_seconds=1e6, energy_budget_joules=1e9,
    )  # fmt: skip
    return replace(problem, seed=seed, standing=replace(nothing_known(clients), **known))


def chosen(plan) -> list[int]:
    """Return who is selected."""
    return np.flatnonzero(plan.selected).tolist()
