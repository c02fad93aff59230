"""Plans: who trains in an edge round, how hard, and what it costs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from espalier.app.features.feature import Feature, Line, Scene
from espalier.app.features.plans import checks, reports, tables
from espalier.app.features.plans.checks import clients_walk
from espalier.app.features.plans.in_front import in_front
from espalier.app.planning.simulated import WirelessWorld
from espalier.strategies.topology import TopologyOf


def _draw(folder: Path, title: str, lines: Sequence[Line], world: Mapping[str, Any] | None) -> None:
    from espalier.app.features.plans.plots import draw_resource_plots  # which imports Matplotlib

    draw_resource_plots(folder, title, lines, world)


def _topology_of(scene: Scene, grid: Grid) -> TopologyOf | None:
    return scene.world.topology_in if isinstance(scene.world, WirelessWorld) and clients_walk(scene.case) else None


PLANS = Feature(
    name="plans",
    check=checks.check,
    check_files=checks.check_files,
    check_moves=checks.check_moves,
    without_use=checks.without_use,
    mover=lambda case: ("radio.speed-metres-per-second", "0.0") if clients_walk(case) else None,
    topology_of=_topology_of,
    may_leave_nobody=lambda case: bool(case.rule),
    in_front=in_front,
    part=reports.planned_rounds_of,
    summary=reports.resource_summary,
    words=reports.words,
    columns=reports.columns,
    states=tables.states,
    tables=tables.tables,
    draw=_draw,
)
