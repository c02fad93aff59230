"""Edges that have hosts of their own, and nodes that move between edges."""

from collections.abc import Iterator

from flwr.serverapp import Grid

from espalier.app.features.case import Case
from espalier.app.features.feature import Feature, Scene
from espalier.app.ground.errors import bad_value
from espalier.app.settings.section import Tag
from espalier.strategies import asking
from espalier.strategies.topology import TopologyOf


def check(case: Case) -> None:
    """Refuse a role that its other settings do not suit."""
    given = case.deploy.as_dict()
    if case.deploy.role != "edge":
        for key in case.deploy.keys_tagged(Tag.OF_EDGE_HOST):
            if value := given[key]:
                raise bad_value(
                    key, value, f"no value for deploy.role = {case.deploy.role!r}: only deploy.role = 'edge' uses it"
                )
    if case.deploy.role == "server":
        return
    if case.is_flat:
        raise bad_value("algorithm", case.algorithm.text, f"one with two tiers for role {case.deploy.role!r}")
    if not case.engine.is_flowers:
        allowed = f"'flower' for deploy.role = {case.deploy.role!r}: type: flwr run . --run-config 'deploy.role=...'"
        raise bad_value("engine", case.engine.text, allowed)
    if case.deploy.role == "edge":
        for key, allowed in (
            ("deploy.edge-name", "the name of this edge"),
            ("deploy.edge-folder", "a private folder that this run shares with the gateway"),
            ("deploy.edge-clients", "the number of this edge's clients"),
        ):
            if not given[key]:
                raise bad_value(key, given[key], f"{allowed} for deploy.role = 'edge'")
        if case.resume:
            raise bad_value("resume", case.resume, "'' for deploy.role = 'edge': the cloud's run is resumed")


def without_use(case: Case) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield what is for nodes of Flower's."""
    if not case.engine.is_flowers:
        yield ("deploy.reply-timeout",), f"with engine = {case.engine.text!r} nobody is late"
        yield ("deploy.transport",), f"with engine = {case.engine.text!r} no message starts a process"
        yield ("deploy.nodes-move",), f"with engine = {case.engine.text!r} no node has a config that changes"
        yield ("edge-names",), f"with engine = {case.engine.text!r} edges are named by their numbers"


def nodes_move(case: Case) -> bool:
    """Return whether nodes may name another edge before every global round."""
    return case.deploy.nodes_move and case.engine.is_flowers


def topology_of(scene: Scene, grid: Grid) -> TopologyOf | None:
    """Return what asks nodes for their edge."""
    if not nodes_move(scene.case):
        return None
    timeout = scene.case.deploy.reply_timeout or None
    return asking(grid, scene.topology, scene.profiles, timeout_seconds=timeout)


HOSTS = Feature(
    name="hosts",
    check=check,
    without_use=without_use,
    mover=lambda case: ("deploy.nodes-move", "false") if nodes_move(case) else None,
    topology_of=topology_of,
)
