"""The parts of a run, from its config: task, streams, clients, edges and the algorithm over them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

from flwr.serverapp import Grid
from torch import nn

from espalier.app.algorithms.auxiliary_heads import auxiliary_head
from espalier.app.algorithms.split_edges import check_head_is_apart, cuts_of
from espalier.app.algorithms.strategies import check_names_that_stay
from espalier.app.config.run_config import RunConfig
from espalier.app.features.case import Case
from espalier.app.features.feature import MakeEdge, Part, Scene
from espalier.app.features.table import FEATURES, parts_of
from espalier.app.ground.errors import bad_value
from espalier.app.meters.bytes import ByteMeter
from espalier.app.meters.seconds import SecondsMeter
from espalier.app.planning.world import PlannedWorld
from espalier.app.tasks.common import compute_device
from espalier.app.tasks.recording import check_cuda_graph
from espalier.app.tasks.split_trial import loss_adds_up
from espalier.app.tasks.stacking import check_stack
from espalier.app.tasks.task import Task
from espalier.app.wiring.cloud import check_averages
from espalier.app.wiring.edges import algorithm_over, edges_here, transports
from espalier.app.wiring.federation import assign_edges, gather_clients, gather_devices, told_clients
from espalier.app.wiring.planning import planned_world
from espalier.app.wiring.streams import (
    Streams,
    check_found,
    largest_frame_bytes,
    largest_message_bytes,
    open_streams,
    stream_form,
)
from espalier.app.wiring.task_of_run import build_task
from espalier.clients.messages.frames import MOST_FRAME_BYTES
from espalier.clients.shared.cut import Cut, as_blocks
from espalier.clients.shared.lanes import Lanes
from espalier.strategies import Hierarchical, Profile, ask_to_measure
from espalier.strategies.stay_grid import let_go_of_others
from espalier.strategies.topology import TopologyOf

# Nodes of a SuperLink that are none of the run's: each is asked who it is, and stays until all clients are found. A
# thread begins with its stream, so that room for many costs nothing; where there are more, the log says so.
MOST_OTHERS = 1024


@dataclass(frozen=True)
class Assembled:
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
    seconds : SecondsMeter
        Tells how long clients and edges take.
    world : PlannedWorld, optional
        Counts joules, and simulated seconds, where rounds are planned.
    parts : Sequence[Part] (default: none)
        What features put into the run.
    """

    profiles: Sequence[Profile]
    client_of: Mapping[int, int]
    hierarchical: Hierarchical
    meter: ByteMeter
    seconds: SecondsMeter
    world: PlannedWorld | None
    parts: Sequence[Part] = ()

    @property
    def edges(self) -> dict[str, list[int]]:
        """The numbers of the clients of each edge, now."""
        topology = self.hierarchical.topology
        return {name: [self.client_of[node_id] for node_id in members] for name, members in topology.items()}


def checked_task(config: RunConfig) -> tuple[Task, nn.Module]:
    """Return the task and its new model; UserError where data, cuts or strategies don't suit them."""
    task = build_task(config)
    task.check_data()
    model = task.new_model()
    check_averages(config.strategies_here, model)
    check_names_that_stay(config.algorithm, model)
    for feature in FEATURES:
        feature.check_model(config, model)
    tried: dict[Cut, None] = {}
    if cuts := cuts_of(config.algorithm, config.split, model):
        tried = dict.fromkeys(cuts if config.split.cut_layer.items else cuts[:1])  # of those that plans choose, one
        if config.algorithm.auxiliary:
            auxiliary_head(config.split, task, config.seed)  # one of the user's own may not fit
        if config.algorithm.freezes_head or (config.algorithm.fine_tunes and config.fine_tune.steps):
            check_head_is_apart(model)
        task.try_cuts(tried, stream_form(config.stream.payload, model) if config.trains_by_stream else None)
    if config.trains_in_parts:
        _check_loss_of_parts(config.stream.micro_batches, task, model)
    device = compute_device(config.device)
    if config.decided.stack:
        check_stack(config.stack, task, model, device, tried)
    if config.decided.records:
        check_cuda_graph(task, device, trains_here=config.trains_here)
    return task, model


def _check_loss_of_parts(micro_batches: int, task: Task, model: nn.Module) -> None:
    """Refuse parts of mini-batches where the loss of the whole is not the mean of its examples' losses."""
    if task.label_shape:
        allowed = "1 for a task with several labels for each example: its loss is a mean over labels, not examples"
        raise bad_value("stream.micro-batches", micro_batches, allowed)
    if not loss_adds_up(task, model):
        allowed = "1 for a loss whose mean over a mini-batch is not that of its examples' losses: of classes that weigh"
        raise bad_value("stream.micro-batches", micro_batches, f"{allowed} differently, say")


@contextmanager
def streams_of(
    config: RunConfig, model: nn.Module, task: Task, patience_seconds: Callable[[float], float]
) -> Iterator[Streams | None]:
    """Accept streams while a run lasts; None for a run without any.

    `patience_seconds` is the engine's `stream_patience_seconds`.

    Raises
    ------
    UserError
        If certificate or key can't be used, or the port is taken.
    """
    stays = config.devices_stay
    if not (config.trains_by_stream or config.measures or stays):
        yield None
        return
    largest = 0
    if config.trains_by_stream:
        cuts, payload = cuts_of(config.algorithm, config.split, model), config.stream.payload
        example, labels = task.example_input(), max(prod(task.label_shape), 1)
        largest = largest_frame_bytes(as_blocks(model), example, cuts, payload, config.train.batch_size, labels)
    largest_message = 0
    if stays:
        # Only clients of a cut model know how large the activations of their test sets are, and only an edge's host
        # knows what it keeps, and gives its gateway.
        is_known = not config.algorithm.splits and config.here.reaches_clients
        largest_message = largest_message_bytes(model) if is_known else MOST_FRAME_BYTES
    # One that stays, beside that of its mini-batches.
    most = config.num_nodes + stays * (config.num_nodes + MOST_OTHERS)
    patience = patience_seconds(config.stream.timeout)
    with open_streams(config.stream, patience, largest, most, largest_message) as streams:
        if config.trains_by_stream and config.engine.in_this_process:
            check_found(config.stream.address)
        yield streams


def assemble(
    config: RunConfig,
    grid: Grid,
    task: Task,
    model: nn.Module,
    streams: Streams | None = None,
    observers: Sequence[Any] = (),
    lanes: Lanes | None = None,
    numbers: Mapping[int, int] | None = None,
) -> Assembled:
    """Wait for the clients, group them and build the algorithm over them.

    Clients that are in this process look for their edge in `lanes`. Those of `numbers`, see `Engine.numbers`, are not
    asked who they are where the task can tell.

    Raises
    ------
    UserError
        For whatever the user has to change.
    """
    profiles, topology = clients_and_edges(config, grid, streams, told_clients(task, numbers))
    meter = ByteMeter(config.links)
    world = planned_world(config, topology, profiles, task, model)
    scene = associated(Scene(config, profiles, topology, world, model))
    scene = replace(scene, topology_of=who_is_where(scene, grid))
    parts = parts_of(scene)
    make_edge = edges_here(scene, task, model, transports(config, meter, streams, lanes), parts)
    return federation_over(scene, make_edge, meter, SecondsMeter(scene.client_of), parts, observers)


def associated(scene: Scene) -> Scene:
    """Return the scene with clients under the edges to which features put them."""
    topology = next(filter(None, (feature.associate(scene) for feature in FEATURES)), None)
    return replace(scene, topology=topology) if topology else scene


def who_is_where(scene: Scene, grid: Grid) -> TopologyOf | None:
    """Return who is under each edge in a global round; None where nobody moves."""
    found = (feature.topology_of(scene, grid) for feature in FEATURES if scene.case.movers)
    return next(filter(None, found), None)


def clients_and_edges(
    config: RunConfig, grid: Grid, streams: Streams | None, told: Sequence[Profile] | None = None
) -> tuple[Sequence[Profile], dict[str, list[int]]]:
    """Wait for the clients, unless they are told; return profiles in client order, and node ids by edge."""
    # Who measures is asked.
    profiles = _gathered(config, grid, streams) if told is None or config.measures else told
    if config.here.has_cloud:
        return profiles, assign_edges(profiles, config.num_edges)
    return profiles, {config.deploy.edge_name: [profile.node_id for profile in profiles]}


def _gathered(case: Case, grid: Grid, streams: Streams | None) -> Sequence[Profile]:
    num_clients = case.federation.num_clients
    # Clients in processes of our own are there from the start, and who has failed once fails again.
    wait_seconds = case.deploy.wait_for_nodes if case.on_devices else 0
    deploy = case.deploy.model_copy(update={"reply_timeout": case.reply_seconds or 0, "wait_for_nodes": wait_seconds})
    edge_names = case.federation.edge_names.items
    gather = partial(gather_clients, edge_names=edge_names) if case.here.has_cloud else gather_devices
    with streams.probes() if streams else nullcontext(ask_to_measure) as measure:
        profiles = gather(grid, num_clients, deploy, measure if case.measures else None)
    let_go_of_others(grid, [profile.node_id for profile in profiles])
    return profiles


def federation_over(
    scene: Scene,
    make_edge: MakeEdge,
    meter: ByteMeter,
    seconds: SecondsMeter,
    parts: Sequence[Part],
    observers: Sequence[Any],
) -> Assembled:
    """Return the algorithm over edges, wherever they run, with what counts and plans; parameters as of `Assembled`."""
    case, world, client_of, topology_of = scene.case, scene.world, scene.client_of, scene.topology_of
    observers = (meter, seconds, *observers, *(observer for part in parts for observer in part.observers()))
    hierarchical = algorithm_over(
        case, case.over_edges, make_edge, scene.topology, client_of, observers, parts, topology_of=topology_of
    )
    return Assembled(scene.profiles, client_of, hierarchical, meter, seconds, world, parts)
