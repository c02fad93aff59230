"""What is reported of plans."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from espalier.app.planning.rule import PlanRule
from espalier.app.settings.sections import Plans
from espalier.sim.meters import EnergyMeter
from espalier.strategies.allocation import Plan


def report_of(clients: np.ndarray, plan: Plan) -> dict[str, Any]:
    """Return what is reported of a plan for clients of these numbers, whatever comes of it."""
    who = np.flatnonzero(plan.selected)
    return {
        "eligible": clients[plan.eligible].tolist(),
        "selected": clients[who].tolist(),
        "local_rounds": plan.local_rounds[who].tolist(),
        "option": plan.option[who].tolist(),
        "frequency_hz": plan.frequency_hz[who].tolist(),
        "power_watts": plan.power_watts[who].tolist(),
        "spare": [],
        "converged": plan.converged,
    }


def of_a_line(rounds: Sequence[tuple[int, dict[str, Any]]], edge_rounds: int) -> list[dict[str, Any]]:
    """Return the reports of an edge's line, each with its ``edge_round`` there, from 1: some may have no plan.

    Parameters
    ----------
    rounds : Sequence[tuple[int, dict]]
        Numbers of edge rounds, from 1 in the run, and their reports.
    edge_rounds : int
        Edge rounds in a global round.
    """
    before = (rounds[0][0] - 1) // edge_rounds * edge_rounds if rounds else 0
    return [{"edge_round": number - before, **report} for number, report in rounds]


def falls_short(limits: Plans, rule: PlanRule, cell: np.ndarray, plan: Plan) -> bool:
    """Tell whether a plan has somebody but fewer of the clients of a cell than `Plans.asked_per_cell`."""
    fewest = np.bincount(cell, weights=plan.selected)[np.unique(cell)].min()
    # The rules that take everybody have no number to fall short of.
    return bool(plan.selected.any() and fewest < limits.asked_per_cell and rule.selects_a_number)


def end_energy_round(energy: EnergyMeter) -> dict[str, float]:
    """Close the round of a meter and return its joules, and those of all rounds so far."""
    compute, upload = energy.round_compute_joules, energy.round_upload_joules
    energy.end_round()
    return {
        "compute": float(compute.sum()),
        "upload": float(upload.sum()),
        "so_far": float(energy.total_joules.sum()),
    }


def rows_of(columns: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Return equally long arrays as a row per entry."""
    return [dict(zip(columns, row, strict=True)) for row in zip(*(c.tolist() for c in columns.values()), strict=True)]
