"""The parts of a run, from its config: task, streams, clients, edges and the algorithm over them."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from flwr.serverapp import Grid
from torch import nn

from espalier.app.algorithms.algorithm import PlanRule, Site
from espalier.app.algorithms.build import (
    MakeEdge,
    check_averages,
    cut_rule,
    equally_weighted,
    knowing,
    planned,
    under_cloud,
)
from espalier.app.algorithms.split_edges import check_cuts, head_weights
from espalier.app.asynchrony import AsynchronousRun, asynchronous_run
from espalier.app.availability import coming_and_going, moves_of
from espalier.app.config import sections
from espalier.app.config.run_config import RunConfig
from espalier.app.config.unused import stack_in_use
from espalier.app.errors import UserError
from espalier.app.federation import assign_edges, gather_clients, gather_devices
from espalier.app.reports.bytes import ByteMeter
from espalier.app.resources.planner import MovesCells, World, cells_of_clients, check_cell_size, check_deadline
from espalier.app.resources.simulated import WirelessWorld
from espalier.app.resources.work import Work, split_work, whole_model_work
from espalier.app.resources.world import world_of
from espalier.app.strategy_spec import parse_strategy
from espalier.app.streams import Streams, largest_frame_bytes, open_streams
from espalier.app.tasks.build import build_task
from espalier.app.tasks.common import compute_device
from espalier.app.tasks.stacking import check_stack
from espalier.app.tasks.task import Task
from espalier.app.tiers.cloud import check_edges, gather_edges, refuse_rules_over_all_cells, remote_edges
from espalier.app.tiers.edge_host import whole_radio_world
from espalier.app.tiers.wire import Counted
from espalier.clients.messages.cut import Cut, as_blocks
from espalier.clients.messages.lanes import Lanes
from espalier.strategies import Guard, Hierarchical, Profile, ask_to_measure, asking
from espalier.strategies.randomness import derived_seed
from espalier.strategies.split.fused import FusedTransport
from espalier.strategies.split.transports import Transport
from espalier.strategies.topology import Topology, TopologyOf


@dataclass(frozen=True)
class Federation:
    """Who takes part in a run, how they train, and what measures it.

    Parameters
    ----------
    profiles : Sequence[Profile]
        The clients, in client order.
    client_of : Mapping[int, int]
        Client number by node id.
    hierarchical : Hierarchical
        The algorithm; it knows the topology.
    meter : ByteMeter
        Counts bytes.
    world : World, optional
        Counts joules, and simulated seconds, where rounds are planned.
    asynchronous : AsynchronousRun, optional (default: None)
        The tier that waits for nobody.
    topology_of : Callable[[int], Mapping[str, Sequence[int]]], optional (default: None)
        Says who is under each edge in a global round; None: nobody moves.
    """

    profiles: Sequence[Profile]
    client_of: Mapping[int, int]
    hierarchical: Hierarchical
    meter: ByteMeter
    world: World | None
    asynchronous: AsynchronousRun | None = None
    topology_of: TopologyOf | None = None

    @property
    def edges(self) -> dict[str, list[int]]:
        """The numbers of the clients of each edge, now."""
        return self._numbers(self.hierarchical.topology)

    def edges_in(self, number: int) -> dict[str, list[int]]:
        """Return the numbers of the clients of each edge in a global round."""
        return self._numbers(self.topology_of(number) if self.topology_of else self.hierarchical.topology)

    def _numbers(self, topology: Topology) -> dict[str, list[int]]:
        return {name: [self.client_of[node_id] for node_id in members] for name, members in topology.items()}


def checked_task(config: RunConfig) -> tuple[Task, nn.Module]:
    """Return the task and its new model; UserError where data, cuts or strategies don't suit them."""
    task = build_task(config)
    task.check_data()
    model = task.new_model()
    specs = [config.federation.cloud_strategy] * (config.deploy.role != "edge")
    check_averages(specs + [config.federation.edge_strategy] * (config.deploy.role != "cloud"), model)
    if config.algorithm.splits:
        cuts_of(config, model)
    if stack_in_use(config):
        check_stack(config.stack, task, model, compute_device(config.device))
    return task, model


def cuts_of(config: RunConfig, model: nn.Module) -> tuple[Cut, ...]:
    """Return the clients' cuts in turn, all there are where they are left to plans; UserError for others."""
    return check_cuts(config.split, model)


@contextmanager
def streams_of(
    config: RunConfig, model: nn.Module, task: Task, patience_seconds: Callable[[float], float]
) -> Iterator[Streams | None]:
    """Accept streams while a run lasts; None for a run without any.

    `patience_seconds` is the engine's `stream_patience_seconds`.
    """
    deploy = config.deploy
    if not (trains_by_stream(config) or measures(config)):
        yield None
        return
    largest = 0
    if trains_by_stream(config):
        cuts, payload = cuts_of(config, model), config.stream.payload
        largest = largest_frame_bytes(as_blocks(model), task.example_input(), cuts, payload, config.train.batch_size)
    with open_streams(
        config.stream,
        max_frame_bytes=largest,
        max_streams=deploy.edge_clients if deploy.role == "edge" else config.federation.num_clients,
        patience_seconds=patience_seconds(config.stream.timeout),
    ) as streams:
        yield streams


def trains_by_stream(config: RunConfig) -> bool:
    """Return whether a run's mini-batches travel in streams to this host."""
    return config.split.transport == "stream" and config.algorithm.splits and config.deploy.role != "cloud"


def measures(config: RunConfig) -> bool:
    """Return whether a run's clients measure themselves, and their links to this host."""
    return config.plan.resources == "measured" and config.deploy.role != "cloud"


def assemble(
    config: RunConfig,
    grid: Grid,
    task: Task,
    model: nn.Module,
    streams: Streams | None = None,
    observers: Sequence[Any] = (),
    lanes: Lanes | None = None,
) -> Federation:
    """Wait for the clients, group them and build the algorithm: for one server, a cloud, or an edge's host.

    Clients that are in this process look for their edge in `lanes`.

    Raises
    ------
    UserError
        For whatever the user has to change.
    """
    if config.deploy.role == "cloud":
        return over_hosts(config, grid, task, model, observers)
    profiles, topology = clients_and_edges(config, grid, streams)
    client_of = {profile.node_id: profile.partition_id for profile in profiles}
    meter = ByteMeter(_tiers(config))
    world = planned_world(config, config.rule, topology, profiles, task, model) if config.rule else None
    transport_of = transports(config, meter, streams, lanes)
    federation = alone(config.federation) if config.deploy.role == "edge" else config.federation
    asynchronous = None if config.deploy.role == "edge" else asynchrony_of(config, topology, client_of, world)
    make_edge = edges_here(config, task, model, profiles, world, transport_of, asynchronous)
    observers = (meter, *observers)
    topology_of = who_is_where(config, grid, profiles, topology, world)
    if topology_of and world:
        observers = (*observers, MovesCells(world))
    hierarchical = algorithm_over(
        config, federation, make_edge, topology, client_of, observers, asynchronous, topology_of=topology_of
    )
    return Federation(profiles, client_of, hierarchical, meter, world, asynchronous, topology_of)


def who_is_where(
    config: RunConfig, grid: Grid, profiles: Sequence[Profile], topology: Topology, world: World | None
) -> TopologyOf | None:
    """Return who is under each edge in a global round; None where nobody moves."""
    if "deploy.nodes-move" in config.movers:
        return asking(grid, topology, profiles, timeout_seconds=config.deploy.reply_timeout or None)
    if isinstance(world, WirelessWorld) and config.clients_walk:
        return world.topology_in
    return moves_of(config.availability, profiles, topology) if config.movers else None


def asynchrony_of(
    config: RunConfig, topology: Mapping[str, Sequence[int]], client_of: Mapping[int, int], world: World | None
) -> AsynchronousRun | None:
    """Return the tier of a run that waits for nobody, if it has one."""
    return asynchronous_run(
        config.asynchrony,
        config.seed,
        topology,
        client_of,
        world,
        is_flat=config.is_flat,
        edge_rounds=config.federation.edge_rounds,
        is_timed=config.by_wall_clock,
    )


def transports(
    config: RunConfig, meter: ByteMeter, streams: Streams | None, lanes: Lanes | None
) -> Callable[[str], Transport] | None:
    """Return what makes the transport of an edge of a name; None where mini-batches travel by messages."""
    if streams and trains_by_stream(config):
        return partial(streams.transport, meter)
    if lanes and config.split.execution == "fused":
        return lambda edge: FusedTransport(lanes, on_passed=partial(meter.on_passed, edge))
    return None


def clients_and_edges(
    config: RunConfig, grid: Grid, streams: Streams | None
) -> tuple[list[Profile], dict[str, list[int]]]:
    """Wait for the clients; return their profiles in client order, and their node ids by edge."""
    deploy, num_clients = config.deploy, config.federation.num_clients
    if config.engine != "flower":  # on engines of our own nobody is late
        deploy = deploy.model_copy(update={"reply_timeout": 0})
    edge_names = config.federation.edge_names.items
    gather = gather_devices if deploy.role == "edge" else partial(gather_clients, edge_names=edge_names)
    with streams.probes() if streams and measures(config) else nullcontext(ask_to_measure) as measure:
        profiles = gather(grid, num_clients, deploy, measure if measures(config) else None)
    if deploy.role == "edge":
        return profiles, {deploy.edge_name: [profile.node_id for profile in profiles]}
    return profiles, assign_edges(profiles, None if config.is_flat else config.edges)


def over_hosts(config: RunConfig, grid: Grid, task: Task, model: nn.Module, observers: Sequence[Any]) -> Federation:
    """Wait for the edges that have hosts of their own, and build the algorithm over them: for a cloud."""
    if config.rule:
        refuse_rules_over_all_cells(config.algorithm, config.rule, config.deploy.role)
    hosts = gather_edges(grid, config.edges, config.deploy, config.federation.edge_names.items)
    check_edges(config.as_dict(), hosts, config.federation.num_clients)
    profiles = sorted((client for edge in hosts for client in edge.clients), key=lambda p: p.partition_id)
    topology = assign_edges(profiles, config.edges)
    meter, world = ByteMeter(_tiers(config)), None
    if config.rule:
        # Radio cells are blocks of client numbers, whatever their edges are called.
        by_cell = dict(sorted(topology.items(), key=lambda edge: min(edge[1])))
        world = planned_world(config, config.rule, by_cell, profiles, task, model)
    make_edge = remote_edges(
        hosts,
        config.federation.edge_rounds,
        config.deploy,
        task.objective.figures,
        is_planned=world is not None,
        on_counted=partial(book, meter, world),
    )
    client_of = {profile.node_id: profile.partition_id for profile in profiles}
    asynchronous = asynchrony_of(config, topology, client_of, world)
    observers = (meter, *observers)
    hierarchical = algorithm_over(config, config.federation, make_edge, topology, client_of, observers, asynchronous)
    return Federation(profiles, client_of, hierarchical, meter, world, asynchronous)


def book(meter: ByteMeter, world: World | None, edge: str, counted: Counted) -> None:
    """Count what an edge counted that runs elsewhere, as if it ran here."""
    meter.add(edge, counted.sent)
    if world:
        for server_round, report in counted.plans:
            world.edges[edge].carried_out(server_round, report)


def alone(federation: sections.Federation) -> sections.Federation:
    """Return the settings for an edge that runs by itself: the cloud's own strategy may need more than this one."""
    return federation.model_copy(update={"cloud_strategy": parse_strategy("cloud-strategy", "FedAvg")})


def algorithm_over(
    config: RunConfig,
    federation: sections.Federation,
    make_edge: MakeEdge,
    topology: Mapping[str, Sequence[int]],
    client_of: Mapping[int, int],
    observers: Sequence[Any],
    asynchronous: AsynchronousRun | None = None,
    **options: Any,
) -> Hierarchical:
    """Return the config's algorithm over edges, wherever they run; UserError where strategies don't suit them."""
    every = config.report.evaluate_every
    try:
        return under_cloud(
            federation,
            make_edge,
            topology,
            is_flat=config.is_flat,
            over_edges=asynchronous.over_edges if asynchronous else Hierarchical,
            seed=config.seed,
            evaluate_every=0 if asynchronous and config.by_wall_clock else every,  # clients may be at work
            observers=observers,
            guard=Guard(config.guard.mode, config.guard.update_norm, config.guard.activation_norm),
            node_name=lambda node_id: f"client {client_of.get(node_id, node_id)}",
            **options,
        )
    except ValueError as error:
        raise UserError(f"{error} (see {HINTS[config.deploy.role]})") from None


# Where to look when strategies and the federation do not go together.
HINTS = {
    "server": "cloud-strategy, edge-strategy, num-clients and num-edges",
    "cloud": "cloud-strategy and num-edges",
    "edge": "edge-strategy and deploy.edge-clients",
}


def _tiers(config: RunConfig) -> dict[str, str]:
    """Return how the report calls the tiers whose bytes are counted here."""
    if config.deploy.role == "server":
        return {"edge": "cloud"} if config.is_flat else {"edge": "edge", "cloud": "cloud"}
    return {config.deploy.role: config.deploy.role}


def planned_world(
    config: RunConfig,
    rule: PlanRule,
    topology: Mapping[str, Sequence[int]],
    profiles: Sequence[Profile],
    task: Task,
    model: nn.Module,
) -> World:
    """Return what the plans of a run are made for; UserError if no plan could be."""
    plan, num_clients = config.plan, config.federation.num_clients
    if not config.is_flat:  # nodes may have chosen their edges
        check_cell_size(plan, rule, min(map(len, topology.values())))
    is_part = config.deploy.role == "edge"
    if is_part and plan.resources == "simulated":
        # The radio world is drawn for all cells, so that plans are those of a run that has all edges.
        topology, profiles = whole_radio_world(config.deploy.edge_name, profiles, num_clients, config.edges)
    client_of = {profile.node_id: profile.partition_id for profile in profiles}
    availability = coming_and_going(config.availability, config.seed, num_clients)
    world = world_of(
        plan,
        config.radio,
        rule,
        config.seed,
        topology=topology,
        cell_of=cells_of_clients(topology, client_of, config.cells if config.is_flat else 1),
        profiles=profiles,
        work=work_of(config, task, model),
        task=task,
        train=config.train,
        clock=time.monotonic if config.engine == "flower" and config.deploy.role != "cloud" else None,
        drops_out=availability.drops_out if availability else None,
        edge_rounds=config.federation.edge_rounds,
    )
    if not (is_part and plan.resources == "measured"):  # then other edges' clients are not known here
        check_deadline(plan, rule, world)
    return world


def work_of(config: RunConfig, task: Task, model: nn.Module) -> Work:
    """Return what a client's part of the training takes, for each cut that a plan may choose from."""
    if not config.algorithm.splits:
        return whole_model_work(model)
    payload = config.stream.payload if config.split.transport == "stream" else "float32"
    frozen = head_weights(model) if config.algorithm.freezes_head else ()
    return split_work(as_blocks(model), task.example_input(), sorted(set(cuts_of(config, model))), payload, frozen)


def edges_here(
    config: RunConfig,
    task: Task,
    model: nn.Module,
    profiles: Sequence[Profile],
    world: World | None,
    transport_of: Callable[[str], Transport] | None,
    asynchronous: AsynchronousRun | None = None,
) -> MakeEdge:
    """Return the function that makes the edges that run in this process."""
    algorithm, federation = config.algorithm, config.federation
    client_of = {profile.node_id: profile.partition_id for profile in profiles}
    cuts = cuts_of(config, model) if algorithm.splits else ()
    cut_of = cut_rule(cuts, client_of, world, is_best=config.split.cut_layer.is_best)
    epochs = config.plan.max_local_rounds if config.rule else task.training.local_epochs
    most = replace(task.training, local_epochs=epochs)
    # A guard that clips changes what a client sent: then each step waits for its verdict.
    stacks = stack_in_use(config) > 0 and config.guard.mode != "clip"
    max_steps = {profile.node_id: most.num_steps(profile.num_train_examples) for profile in profiles}

    def make(name: str, size: int) -> Any:
        return algorithm.make_edge(
            Site(
                name=name,
                size=size,
                seed=derived_seed(config.seed, "split", name),
                cut_of=cut_of,
                client_of=client_of,
                transport=transport_of(name) if transport_of else None,
                task=task,
                federation=federation,
                train=config.train,
                split=config.split,
                device=compute_device(config.device),
                max_steps=max_steps.__getitem__,
                stacks=stacks,
            )
        )

    make_edge: MakeEdge = asynchronous.edges(make) if asynchronous else make
    if world and config.rule:
        from_cloud = algorithm.strategy_key == federation.cloud_strategy.key
        spec = federation.cloud_strategy if from_cloud else federation.edge_strategy
        cells = config.cells if config.is_flat else 1
        make_edge = planned(make_edge, config.rule, config.plan, world, cells_per_edge=cells, spec=spec)
    if comings := coming_and_going(config.availability, config.seed, federation.num_clients):
        make_edge = comings.in_front_of(make_edge, client_of)
    if config.train.weighting == "equal":
        make_edge = equally_weighted(make_edge)
    return knowing(make_edge, profiles, task.objective, validates=config.data.validation_share > 0)
