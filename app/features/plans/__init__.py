"""Plans: who trains in an edge round, how hard, and what it costs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from espalier.app.features.feature import Feature, Line, Scene
from espalier.app.features.plans.checks import check, check_moves, clients_walk, without_use
from espalier.app.features.plans.in_front import in_front
from espalier.app.features.plans.reports import columns, planned_rounds_of, resource_summary, words
from espalier.app.planning.simulated import WirelessWorld
from espalier.strategies.topology import TopologyOf


def _draw(folder: Path, title: str, lines: Sequence[Line], world: Mapping[str, Any] | None) -> None:
    from espalier.app.features.plans.plots import draw_resource_plots  # which imports Matplotlib

    draw_resource_plots(folder, title, lines, world)


def _topology_of(scene: Scene, grid: Grid) -> TopologyOf | None:
    walks = isinstance(scene.world, WirelessWorld) and clients_walk(scene.case)
    return scene.world.topology_in if isinstance(scene.world, WirelessWorld) and walks else None


PLANS = Feature(
    name="plans",
    check=check,
    check_moves=check_moves,
    without_use=without_use,
    mover=lambda case: ("radio.speed-metres-per-second", "0.0") if clients_walk(case) else None,
    topology_of=_topology_of,
    in_front=in_front,
    part=planned_rounds_of,
    summary=resource_summary,
    words=words,
    columns=columns,
    draw=_draw,
)
