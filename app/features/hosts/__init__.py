"""Edges that have hosts of their own, and nodes that move between edges."""

from flwr.serverapp import Grid

from espalier.app.features.case import Case
from espalier.app.features.feature import Feature, Scene, Unused
from espalier.app.ground.errors import bad_value
from espalier.app.ground.reasons import unused
from espalier.app.settings.section import Tag
from espalier.strategies import asking
from espalier.strategies.topology import TopologyOf


def check(case: Case) -> None:
    """Refuse a role that its other settings do not suit."""
    if case.here.has_cloud:
        for key, value in case.deploy.given(Tag.OF_EDGE_HOST):
            allowed = f"no value for deploy.role = {case.deploy.role!r}: only deploy.role = 'edge' uses it"
            raise bad_value(key, value, allowed)
    if case.here.is_whole:
        return
    if case.is_flat:
        raise bad_value("algorithm", case.algorithm.text, f"one with two tiers for role {case.deploy.role!r}")
    if not case.on_devices:
        allowed = f"'flower' for deploy.role = {case.deploy.role!r}: type: flwr run . --run-config 'deploy.role=...'"
        raise bad_value("engine", case.engine.text, allowed)
    if not case.here.has_cloud:
        for key, allowed in (
            ("deploy.edge-name", "the name of this edge"),
            ("deploy.edge-folder", "a private folder that this run shares with the gateway"),
            ("deploy.edge-clients", "the number of this edge's clients"),
        ):
            if not (value := case.deploy.as_dict()[key]):
                raise bad_value(key, value, f"{allowed} for deploy.role = 'edge'")
        if case.resume:
            raise bad_value("resume", case.resume, "'' for deploy.role = 'edge': the cloud's run is resumed")


def without_use(case: Case) -> Unused:
    """Yield what the engine has no use for, and at an edge what the cloud's run alone does."""
    yield from case.engine.without_use
    yield from unused(
        (not case.here.has_cloud, ("report.tracker", "report.group", "report.plots"), "the cloud's run reports"),
        (not case.here.has_cloud, ("edge-names",), "it is for the cloud's run: devices may name deploy.edge-name"),
    )


def nodes_move(case: Case) -> bool:
    """Return whether nodes may name another edge before every global round."""
    return case.deploy.nodes_move and case.on_devices


def topology_of(scene: Scene, grid: Grid) -> TopologyOf | None:
    """Return what asks nodes for their edge."""
    if not nodes_move(scene.case):
        return None
    return asking(grid, scene.topology, scene.profiles, timeout_seconds=scene.case.reply_seconds)


HOSTS = Feature(
    name="hosts",
    check=check,
    without_use=without_use,
    mover=lambda case: ("deploy.nodes-move", "false") if nodes_move(case) else None,
    topology_of=topology_of,
)
