"""Edges that have hosts of their own: an edge's run there, and the cloud's algorithm over them."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from torch import nn

from espalier.app.algorithms.algorithm import Algorithm
from espalier.app.algorithms.split_edges import head_weights
from espalier.app.config.run_config import RunConfig
from espalier.app.features.feature import Scene
from espalier.app.features.table import parts_of, uplinks_of
from espalier.app.meters.bytes import ByteMeter
from espalier.app.meters.seconds import SecondsMeter
from espalier.app.planning.world import PlannedWorld
from espalier.app.settings.sections import Split
from espalier.app.tasks.task import Task
from espalier.app.tiers.cloud import check_edges, check_same_config, gather_edges, remote_edges
from espalier.app.tiers.edge_host import EdgeRun
from espalier.app.tiers.states import OwnState
from espalier.app.tiers.wire import Counted
from espalier.app.wiring.edges import metered_edge
from espalier.app.wiring.federation import assign_edges
from espalier.app.wiring.one_server import Assembled, clients_and_edges, federation_over
from espalier.app.wiring.planning import planned_world
from espalier.app.wiring.streams import Streams
from espalier.strategies.stay_grid import let_go_of_others


def edge_run(config: RunConfig, grid: Grid, task: Task, model: nn.Module, streams: Streams | None = None) -> EdgeRun:
    """Wait for the devices of an edge that has a host of its own, and return its run; UserError as of `assemble`."""
    name = config.deploy.edge_name
    profiles, topology = clients_and_edges(config, grid, streams)
    world = planned_world(config, topology, profiles, task, model)
    scene = Scene(config, profiles, topology, world, model)
    hierarchical, meter, seconds = metered_edge(scene, task, model, streams)
    return EdgeRun(
        name,
        config.as_dict(),
        grid,
        profiles,
        hierarchical,
        meter,
        seconds,
        world,
        OwnState(hierarchical.edges[name], world),
        timeout_seconds=config.reply_seconds,
        deadline=world.edges[name].deadline if world else None,
        figures=task.objective.figures,
        uplinks=uplinks_of(config),
    )


def over_hosts(config: RunConfig, grid: Grid, task: Task, model: nn.Module, observers: Sequence[Any]) -> Assembled:
    """Wait for the edges that have hosts of their own, and build the algorithm over them: for a cloud."""
    hosts = gather_edges(grid, config.edges, config.deploy, config.federation.edge_names.items)
    let_go_of_others(grid, [edge.gateway for edge in hosts])
    check_edges(config.as_dict(), hosts, config.federation.num_clients)
    profiles = sorted((client for edge in hosts for client in edge.clients), key=lambda p: p.partition_id)
    topology = assign_edges(profiles, config.edges)
    # Radio cells are blocks of client numbers, whatever their edges are called.
    by_cell = dict(sorted(topology.items(), key=lambda edge: min(edge[1])))
    meter, world = ByteMeter({"cloud": "cloud"}), planned_world(config, by_cell, profiles, task, model)
    scene = Scene(config, profiles, topology, world, model)
    seconds = SecondsMeter(scene.client_of)
    make_edge = remote_edges(
        hosts,
        config.federation.edge_rounds,
        config.deploy,
        task.objective.figures,
        head=tuned_head(config.algorithm, config.split, model),
        uplinks=uplinks_of(config),
        is_planned=world is not None,
        check_config=partial(check_same_config, config.as_dict()),
        on_counted=partial(add_counted, meter, seconds, world),
    )
    return federation_over(scene, make_edge, meter, seconds, parts_of(scene), observers)


def tuned_head(algorithm: Algorithm, split: Split, model: nn.Module) -> ArrayRecord | None:
    """Return what the heads that edges fine-tune are like; None where there are none, or clients keep theirs."""
    return head_weights(model) if algorithm.splits and split.tail_layer.is_none else None


def add_counted(
    meter: ByteMeter, seconds: SecondsMeter, world: PlannedWorld | None, edge: str, counted: Counted
) -> None:
    """Count what an edge counted that runs elsewhere, as if it ran here."""
    meter.add(edge, counted.sent)
    if counted.seconds:
        seconds.add(edge, counted.seconds)
    if world:
        for server_round, report in counted.plans:
            world.edges[edge].carried_out(server_round, report)
