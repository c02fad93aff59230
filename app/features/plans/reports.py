"""Whom plans chose and what they cost, from the lines of ``metrics.jsonl`` and the world of a run."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from espalier.app.features.feature import Line, Part, RoundOver, Scene
from espalier.app.planning.plan_reports import of_a_line
from espalier.app.planning.world import MovesCells, PlannedWorld
from espalier.strategies import Observer


@dataclass(frozen=True)
class ClientTotals:
    """A client's part in all edge rounds of a run.

    Parameters
    ----------
    times_eligible, times_eligible_at_full_power, times_selected, times_late : int
        Edge rounds in which it could take part in the eyes of the solver, could make a local round at its highest
        frequency and power (RawHFL paper, Fig. 5a), was selected, and delivered after the deadline.
    compute_joules, upload_joules : float
        What it spent; late results cost as well.
    """

    times_eligible: int
    times_eligible_at_full_power: int
    times_selected: int
    times_late: int
    compute_joules: float
    upload_joules: float

    @property
    def joules(self) -> float:
        """What it spent in all."""
        return self.compute_joules + self.upload_joules


def planned_rounds(lines: Iterable[Line]) -> Iterator[tuple[str, Line]]:
    """Yield the edge and the plan of every edge round that was planned.

    Those of edges that are still at work are in the last global line. An earlier one was the last of a run that was
    resumed for more rounds: they got into edge lines.
    """
    at_work: Mapping[str, Sequence[Line]] = {}
    for line in lines:
        if line["scope"] == "edge":
            for plan in line.get("plans", []):
                yield line["edge"], plan
        elif line["scope"] == "global":
            at_work = line.get("plans_at_work", {})
    for edge, plans in at_work.items():
        for plan in plans:
            yield edge, plan


def client_totals(lines: Iterable[Line], clients: Iterable[int]) -> dict[int, ClientTotals]:
    """Return the part that each of some clients had in all edge rounds."""
    keys = ("eligible", "eligible_at_full_power", "selected", "late")  # in the order of ClientTotals
    counts: dict[str, Counter[int]] = {key: Counter() for key in keys}
    joules: dict[str, Counter[int]] = {key: Counter() for key in ("compute_joules", "upload_joules")}
    for _, plan in planned_rounds(lines):
        for key, count in counts.items():
            count.update(plan[key])
        for key, spent in joules.items():
            spent.update(dict(zip(plan["selected"], plan[key], strict=True)))
    return {
        client: ClientTotals(
            *(count[client] for count in counts.values()), *(float(spent[client]) for spent in joules.values())
        )
        for client in clients
    }


def resource_summary(lines: Sequence[Line]) -> Line:
    """Return what ``summary.json`` says of plans; nothing for a run without any.

    Returns
    -------
    dict
        ``energy_joules`` (``total``, ``compute``, ``upload``, and ``per_client_round``: per selected client and edge
        round, None if nobody ever was selected), ``simulated_seconds`` (where a clock is simulated; the joules are
        those of the plans elsewhere), ``late`` (results after the simulated deadline), ``spare`` (results that nobody
        waited for, where there are any), ``late_share`` (where plans are made for one: ``asked``, and what was
        ``observed``, None if nobody ever was selected), ``edge_rounds_without_anybody`` and ``edge_rounds_short`` (in
        which nobody, or fewer clients than asked for, were selected, as too few could take part; where none was there
        to plan for, too),
        and ``edge_rounds_unconverged`` (with plans of a solver that stopped before it converged).
    """
    plans = [plan for _, plan in planned_rounds(lines)]
    if not plans:
        return {}
    compute, upload = (float(sum(sum(plan[key]) for plan in plans)) for key in ("compute_joules", "upload_joules"))
    selected = sum(len(plan["selected"]) for plan in plans)
    late = sum(len(plan["late"]) for plan in plans)
    spare = sum(len(plan.get("spare", ())) for plan in plans)
    asked = [line["late_share"]["asked"] for line in lines if "late_share" in line]
    times = [line["simulated_seconds"] for line in lines if "simulated_seconds" in line]
    return {
        "energy_joules": {
            "total": compute + upload,
            "compute": compute,
            "upload": upload,
            "per_client_round": (compute + upload) / selected if selected else None,
        },
        **({"simulated_seconds": times[-1]} if times else {}),
        "late": late,
        **({"spare": spare} if spare else {}),
        **({"late_share": {"asked": asked[-1], "observed": late / selected if selected else None}} if asked else {}),
        "edge_rounds_without_anybody": sum(not plan["selected"] for plan in plans) + _without_a_plan(lines),
        "edge_rounds_short": sum(plan.get("short", False) for plan in plans),
        "edge_rounds_unconverged": sum(not plan.get("converged", True) for plan in plans),
    }


def joules_of_clients(lines: Iterable[Line], world: Mapping[str, Any]) -> dict[int, list[float]]:
    """Return, by cell, what each of its clients spent in all rounds; 0 for one that never was selected."""
    totals = client_totals(lines, (client["client"] for client in world["clients"]))
    cells: dict[int, list[float]] = {}
    for client in world["clients"]:
        cells.setdefault(client["cell"], []).append(totals[client["client"]].joules)
    return dict(sorted(cells.items()))


def joules_of_client_rounds(lines: Iterable[Line], world: Mapping[str, Any]) -> dict[int, list[float]]:
    """Return, by cell, what each selected client spent in each edge round (RawHFL paper, Fig. 8)."""
    cell_of = {client["client"]: client["cell"] for client in world["clients"]}
    cells: dict[int, list[float]] = {cell: [] for cell in sorted(set(cell_of.values()))}
    for _, plan in planned_rounds(lines):
        for client, joules in _joules(plan).items():
            cells[cell_of[client]].append(joules)
    return cells


def joules_of_cell_rounds(lines: Iterable[Line], world: Mapping[str, Any]) -> dict[int, list[float]]:
    """Return, by cell, what its clients together spent in each edge round (RawHFL paper, Fig. 7)."""
    cell_of = {client["client"]: client["cell"] for client in world["clients"]}
    cells: dict[int, list[float]] = {cell: [] for cell in sorted(set(cell_of.values()))}
    cells_of_edge: dict[str, set[int]] = {}
    for client in world["clients"]:
        cells_of_edge.setdefault(client["edge"], set()).add(client["cell"])
    for edge, plan in planned_rounds(lines):
        spent = dict.fromkeys(sorted(cells_of_edge[edge]), 0.0)
        for client, joules in _joules(plan).items():
            # A client that has moved is in the cell of the edge that planned for it.
            spent[cell_of[client] if cell_of[client] in spent else min(spent)] += joules
        for cell, joules in spent.items():
            cells[cell].append(joules)
    return cells


def cdf(values: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps of an empirical distribution function.

    Returns
    -------
    tuple[np.ndarray, np.ndarray]
        The values in ascending order, and the share of them that is not above each.
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    return ordered, np.searchsorted(ordered, ordered, side="right") / len(ordered)


def _without_a_plan(lines: Iterable[Line]) -> int:
    """Return how many edge rounds have no plan and nobody who took part.

    All clients of the edge were away or under other edges, or its host did not answer.
    """
    found = 0
    for line in lines:
        if line["scope"] == "edge" and "plans" in line:
            rounds = line["participants"]
            found += max(0, min(sum(not clients for clients in rounds), len(rounds) - len(line["plans"])))
    return found


def _joules(plan: Line) -> dict[int, float]:
    spent = zip(plan["selected"], plan["compute_joules"], plan["upload_joules"], strict=True)
    return {client: compute + upload for client, compute, upload in spent}


@dataclass(frozen=True)
class PlannedRounds(Part):
    """Reports plans, joules and simulated seconds.

    Parameters
    ----------
    world : PlannedWorld
        Keeps them.
    are_moved : bool
        Clients move to other edges, and to their cells.
    edge_rounds : int
        Edge rounds in a global round.
    """

    world: PlannedWorld
    are_moved: bool
    edge_rounds: int

    def observers(self) -> Sequence[Observer]:
        """Return who lets clients move to other cells."""
        return [MovesCells(self.world)] if self.are_moved else []

    def of_edge(self, name: str, over: RoundOver) -> Line:
        """Return the plans of the edge rounds that are over."""
        return {"plans": of_a_line(self.world.edges[name].take_rounds(over.at_work.get(name, ())), self.edge_rounds)}

    def end_round(self, over: RoundOver) -> Line:
        """Return time and joules, and after the last round the plans of edges that are still at work."""
        return self.world.end_round() | (plans_at_work(self.world) if over.is_last else {})


def planned_rounds_of(scene: Scene) -> PlannedRounds | None:
    """Return what reports them; None for a run without plans."""
    if scene.world is None:
        return None
    return PlannedRounds(scene.world, scene.topology_of is not None, scene.case.edge_rounds)


def plans_at_work(world: PlannedWorld) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Return ``plans_at_work``, by edge: plans that are paid for and in no edge line, as their edges are still at work.

    They stay pending: where the run is resumed for more rounds, they get into edge lines.
    """
    plans = {name: [report for _, report in edge.pending] for name, edge in world.edges.items() if edge.pending}
    return {"plans_at_work": plans} if plans else {}


def columns(lines: Sequence[Line], clients: Sequence[int]) -> dict[str, list[Any]]:
    """Return how often clients could take part, were selected and were late, and their joules."""
    if not any("plans" in line for line in lines):
        return {}
    totals = client_totals(lines, clients)
    return {own.name: [getattr(totals[client], own.name) for client in clients] for own in fields(ClientTotals)}


def words(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the table at the end of a run says of them."""
    if not (joules := summary.get("energy_joules")):
        return
    each = joules["per_client_round"]
    share = "nobody was ever selected" if each is None else f"{each:.4g} J per selected client and edge round"
    late, nobody = _late(summary), f"{summary['edge_rounds_without_anybody']} edge rounds without anybody"
    if short := summary["edge_rounds_short"]:
        nobody += f", {short} short of clients"
    if unconverged := summary["edge_rounds_unconverged"]:
        nobody += f", {unconverged} with plans that are not converged"
    if "simulated_seconds" in summary:
        yield f"energy: {joules['total']:.4g} J, {share}"
        yield f"simulated time: {summary['simulated_seconds']:.1f} s; {late}, {nobody}"
    else:
        yield f"energy as planned: {joules['total']:.4g} J, {share}; {late}, {nobody}"


def _late(summary: Mapping[str, Any]) -> str:
    """Return how many results were late, and the share of it where one was asked for."""
    late, shares = f"{summary['late']} late", summary.get("late_share")
    if not shares or shares["observed"] is None:
        return late
    return f"{late} ({shares['observed']:.1%} of the results, {shares['asked']:.1%} asked for)"
