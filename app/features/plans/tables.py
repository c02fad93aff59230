"""What the page of a run shows of its plans: who was selected, at which frequency and power, and what cells cost."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from espalier.app.features.feature import Did, Line, State, Table
from espalier.app.features.plans.reports import planned_rounds

OF_A_PLAN = ("local_rounds", "frequency_hz", "power_watts", "compute_joules", "upload_joules")


def states(line: Line) -> Iterator[Did]:
    """Yield who was late by the simulated deadline, and for whose result nobody waited."""
    for plan in line.get("plans", ()):
        yield from (Did(client, State.LATE, "after the deadline") for client in plan["late"])
        yield from (Did(client, State.SPARE) for client in plan.get("spare", ()))


def tables(lines: Sequence[Line], world: Mapping[str, Any] | None) -> Iterator[Table]:
    """Yield the plans that each edge carried out last, and what edges and their cells did in all rounds."""
    cell_of = {own["client"]: own["cell"] for own in (world or {}).get("clients", ())}
    last = {line["edge"]: line for line in lines if line["scope"] == "edge" and line.get("plans")}
    rows = [
        {
            "edge": name,
            "round": line["round"],
            "edge_round": plan.get("edge_round", number),
            "client": client,
            "cell": cell_of.get(client),
            **{key: plan[key][place] for key in OF_A_PLAN},
            "late": "late" if client in plan["late"] else "",
        }
        for name, line in last.items()
        for number, plan in enumerate(line["plans"], 1)
        for place, client in enumerate(plan["selected"])
    ]
    if rows:
        yield Table("Plans that each edge carried out last", {key: [row[key] for row in rows] for key in rows[0]})
    yield from _of_edges(lines, cell_of)


def _of_edges(lines: Sequence[Line], cell_of: Mapping[int, int]) -> Iterator[Table]:
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    cells: dict[str, set[int]] = defaultdict(set)
    for edge, plan in planned_rounds(lines):
        own = sums[edge]
        own["edge_rounds_planned"] += 1
        own["selected"] += len(plan["selected"])
        own["late"] += len(plan["late"])
        for key in ("compute_joules", "upload_joules"):
            own[key] += sum(plan[key])
        own["simulated_seconds"] += plan.get("seconds", 0.0)
        cells[edge] |= {cell_of[client] for client in plan["eligible"] if client in cell_of}
    if sums:
        names = list(next(iter(sums.values())))
        yield Table(
            "Plans of all rounds, by edge",
            {
                "edge": list(sums),
                "cells": [", ".join(map(str, sorted(cells[edge]))) for edge in sums],
                **{name: [own[name] for own in sums.values()] for name in names},
            },
        )
