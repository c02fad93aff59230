"""One run: from a validated config and an engine to a results folder."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from errno import EDQUOT, EFBIG, EIO, ENOSPC
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord
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
from espalier.app.config.run_config import RunConfig
from espalier.app.config.together import check_strategies
from espalier.app.config.unused import unused_keys
from espalier.app.engines.engine import Engine
from espalier.app.errors import Interrupted, UserError, bad_value
from espalier.app.federation import assign_edges, gather_clients, gather_devices
from espalier.app.memory import keep_memory
from espalier.app.personalisation import personalise
from espalier.app.reports.bytes import ByteMeter
from espalier.app.reports.closed_form import closed_form_bits
from espalier.app.reports.final import write_final_reports
from espalier.app.reports.folder import ResultsFolder, RunTitle, refuse_used
from espalier.app.reports.observers import (
    RoundObserver,
    ServerEvaluation,
    StateSaver,
    WriteMetrics,
)
from espalier.app.reports.progress import BarProgress, LogProgress
from espalier.app.reports.tracker import Tracker, load_tracker
from espalier.app.resources.planner import World, cells_of_clients, check_cell_size, check_deadline
from espalier.app.resources.work import Work, split_work, whole_model_work
from espalier.app.resources.world import world_of
from espalier.app.rounds import train
from espalier.app.strategy_spec import parse_strategy
from espalier.app.streams import Streams, largest_frame_bytes, open_streams
from espalier.app.tasks.build import build_task
from espalier.app.tasks.common import compute_device, set_up_torch
from espalier.app.tasks.task import Task
from espalier.app.tiers.cloud import check_edges, gather_edges, refuse_rules_over_all_cells, remote_edges
from espalier.app.tiers.edge_host import LOOK_SECONDS, EdgeRun, serve, whole_radio_world
from espalier.app.tiers.listener import EdgeListener
from espalier.clients.messages.cut import as_blocks
from espalier.strategies import Guard, Hierarchical, Profile, ask_to_measure
from espalier.strategies.randomness import derived_seed
from espalier.strategies.split import FineTuning

logger = getLogger("espalier")
ProgressDisplay = BarProgress | LogProgress


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
    """

    profiles: Sequence[Profile]
    client_of: Mapping[int, int]
    hierarchical: Hierarchical
    meter: ByteMeter
    world: World | None

    @property
    def edges(self) -> dict[str, list[int]]:
        """The numbers of the clients of each edge."""
        return {
            name: [self.client_of[node_id] for node_id in members]
            for name, members in self.hierarchical.topology.items()
        }


def run(config: RunConfig, engine: Engine, progress: ProgressDisplay, results_parent: Path) -> Path:
    """Run the config's algorithm and return the results folder.

    Parameters
    ----------
    config : RunConfig
        What to run.
    engine : Engine
        Where the clients are.
    progress : BarProgress | LogProgress
        Shows how far it is.
    results_parent : Path
        Where the results folder goes if `output-dir` names none.

    Raises
    ------
    UserError
        Before any training and before anything is written, for whatever the user has to change.
    """
    check_strategies(config)
    warn_of_unused(config)
    set_up_torch(config.device, config.train.torch_threads)
    title = RunTitle(config.algorithm.name, config.data.title, config.seed)
    folder = ResultsFolder.reopen(Path(config.resume), config.as_dict()) if config.resume else None
    path = ResultsFolder.path_for(config.output_dir, results_parent, title)
    if not folder:
        refuse_used(path)
    tracker = load_tracker(config.report.tracker)
    task, model = checked_task(config)
    state = resumable_state(config, folder, task) if folder else None
    with streams_of(config, model, task, engine) as streams:
        federation = assemble(config, engine.grid, task, model, streams, observers=(progress,))
        if state:
            check_same_edges(state["edges"], federation.edges)
        if folder:
            folder.go_on_after(state["round"] if state else 0, config.as_dict())
        else:
            folder = ResultsFolder.create(path, config.as_dict())
        logger.info("results go to %s", folder.path)
        with unwritable_as_user_error(folder.path), interrupted_in(folder.path):
            _run_with(config, engine, task, model, federation, folder, state, progress, title, tracker)
    if not any(line.get("trained") for line in folder.read_metrics()):
        message = f"{folder.path}: no client trained in any round; metrics.jsonl has the reasons"
        if not config.rule:
            raise UserError(message)
        logger.warning(message)  # that nobody can take part is what such a run may have to say
    return folder.path


def _run_with(
    config: RunConfig,
    engine: Engine,
    task: Task,
    model: nn.Module,
    federation: Federation,
    folder: ResultsFolder,
    state: dict[str, Any] | None,
    progress: ProgressDisplay,
    title: RunTitle,
    tracker: Tracker | None,
) -> None:
    """Train with a federation, personalise, and report."""
    hierarchical, world = federation.hierarchical, federation.world
    if world:
        folder.write_json("world.json", world.describe())
    frozen = head_weights(model) if config.algorithm.freezes_head else ArrayRecord()
    closed_form = closed_form_of(config, task, model, federation.profiles)
    timeout = config.deploy.reply_timeout or None
    device = compute_device(config.device)
    observers: list[RoundObserver] = [
        WriteMetrics(folder, federation.meter, federation.client_of, world, closed_form, tracker),
        StateSaver(folder, hierarchical, engine, world, task.data_fingerprint(), federation.edges),
    ]
    if config.algorithm.has_model:
        observers.insert(0, ServerEvaluation(model, frozen, task, device, hierarchical))
    model.to(device)
    arrays = train(
        engine,
        hierarchical,
        ArrayRecord({n: array for n, array in ArrayRecord(model.state_dict()).items() if n not in frozen}),
        config.federation.global_rounds,
        observers,
        progress,
        timeout_seconds=timeout,
        state=state,
        world=world,
    )
    model.load_state_dict(ArrayRecord({**arrays, **frozen}).to_torch_state_dict())
    if config.algorithm.splits and config.fine_tune.steps:
        personalise(
            FineTuning(config.fine_tune.steps, config.fine_tune.rate),
            engine.grid,
            hierarchical,
            arrays,
            federation.client_of,
            folder,
            federation.meter,
            number=config.federation.global_rounds,
            timeout_seconds=timeout,
        )
    write_final_reports(title, folder, model, federation.profiles, hierarchical.topology, closed_form)


def run_edge(
    config: RunConfig,
    engine: Engine,
    results_parent: Path,
    is_over: Callable[[], bool] = lambda: False,
    look_seconds: float = LOOK_SECONDS,
) -> None:
    """Wait for the devices of an edge that has a host of its own, then serve the cloud's requests.

    Parameters
    ----------
    config : RunConfig
        The run, with ``deploy.role = "edge"``.
    engine : Engine
        Reaches the devices.
    results_parent : Path
        Where the results folder goes if `output-dir` names none.
    is_over : Callable[[], bool] (default: never)
        Asked between requests whether to stop.
    look_seconds : float (default: 2)
        How often to look for it, and at who is connected, while no request comes.

    Raises
    ------
    UserError
        For whatever the user has to change.
    """
    check_strategies(config)
    set_up_torch(config.device, config.train.torch_threads)
    if config.rule:
        refuse_rules_over_all_cells(config.algorithm, config.rule, config.deploy.role)
    title = RunTitle(config.algorithm.name, config.data.title, config.seed)
    path = ResultsFolder.path_for(config.output_dir, results_parent, title)
    refuse_used(path)
    task, model = checked_task(config)
    with (
        EdgeListener(Path(config.deploy.edge_folder).expanduser()) as listener,
        streams_of(config, model, task, engine) as streams,
    ):
        federation = assemble(config, engine.grid, task, model, streams)
        edge = EdgeRun(
            config.deploy.edge_name,
            config.as_dict(),
            engine.grid,
            federation.profiles,
            federation.hierarchical,
            federation.meter,
            federation.world,
            timeout_seconds=config.deploy.reply_timeout or None,
        )
        edge.report_to(ResultsFolder.create(path, config.as_dict()))
        keep_memory()
        serve(edge, listener, is_over, look_seconds)


def warn_of_unused(config: RunConfig) -> None:
    """Warn of every setting that was given and that the run has no use for."""
    for key, reason in unused_keys(config).items():
        logger.warning("%s = %r has no effect: %s", key, config.as_dict()[key], reason)


def checked_task(config: RunConfig) -> tuple[Task, nn.Module]:
    """Return the task and its new model; UserError where data, cuts or strategies don't suit them."""
    task = build_task(config)
    task.check_data()
    model = task.new_model()
    specs = [config.federation.cloud_strategy] * (config.deploy.role != "edge")
    check_averages(specs + [config.federation.edge_strategy] * (config.deploy.role != "cloud"), model)
    if config.algorithm.splits:
        _cuts(config, model)
    return task, model


def _cuts(config: RunConfig, model: nn.Module) -> tuple[int, ...]:
    return check_cuts(config.split.cut_layer.numbers, config.split.cut_layer.text, model)


@contextmanager
def streams_of(config: RunConfig, model: nn.Module, task: Task, engine: Engine) -> Iterator[Streams | None]:
    """Accept streams while a run lasts; None for a run without any."""
    deploy = config.deploy
    if not (trains_by_stream(config) or measures(config)):
        yield None
        return
    largest = 0
    if trains_by_stream(config):
        cuts, payload = _cuts(config, model), config.stream.payload
        largest = largest_frame_bytes(as_blocks(model), task.example_input(), cuts, payload, config.train.batch_size)
    with open_streams(
        config.stream,
        max_frame_bytes=largest,
        max_streams=deploy.edge_clients if deploy.role == "edge" else config.federation.num_clients,
        patience_seconds=engine.stream_patience_seconds(config.stream.timeout),
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
) -> Federation:
    """Wait for the clients, group them and build the algorithm: for one server, a cloud, or an edge's host.

    Raises
    ------
    UserError
        For whatever the user has to change.
    """
    deploy, federation = config.deploy, config.federation
    hosts = []
    if deploy.role == "cloud":
        if config.rule:
            refuse_rules_over_all_cells(config.algorithm, config.rule, deploy.role)
        hosts = gather_edges(grid, config.edges, deploy)
        check_edges(config.as_dict(), hosts, federation.num_clients)
        profiles = sorted((client for edge in hosts for client in edge.clients), key=lambda p: p.partition_id)
    else:
        gather = gather_devices if deploy.role == "edge" else gather_clients
        with streams.probes() if streams and measures(config) else nullcontext(ask_to_measure) as measure:
            profiles = gather(grid, federation.num_clients, deploy, measure if measures(config) else None)
    client_of = {profile.node_id: profile.partition_id for profile in profiles}
    if deploy.role == "edge":
        topology = {deploy.edge_name: [profile.node_id for profile in profiles]}
        # The cloud's own strategy may need more edges than this one.
        federation = federation.model_copy(update={"cloud_strategy": parse_strategy("cloud-strategy", "FedAvg")})
    else:
        topology = assign_edges(profiles, None if config.is_flat else config.edges)
    meter = ByteMeter(_tiers(config))
    world = None
    try:
        if hosts:
            make_edge = remote_edges(hosts, federation.edge_rounds, deploy, task.objective.figures)
        else:
            world = planned_world(config, config.rule, topology, profiles, task, model) if config.rule else None
            transport_of = partial(streams.transport, meter) if streams and trains_by_stream(config) else None
            make_edge = edges_here(config, task, model, profiles, world, transport_of)
        hierarchical = under_cloud(
            federation,
            make_edge,
            topology,
            is_flat=config.is_flat,
            seed=config.seed,
            evaluate_every=config.report.evaluate_every,
            observers=(meter, *observers),
            guard=Guard(config.guard.mode, config.guard.update_norm, config.guard.activation_norm),
            node_name=lambda node_id: f"client {client_of.get(node_id, node_id)}",
        )
    except ValueError as error:
        raise UserError(f"{error} (see {HINTS[deploy.role]})") from None
    return Federation(profiles, client_of, hierarchical, meter, world)


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
    )
    if not (is_part and plan.resources == "measured"):  # then other edges' clients are not known here
        check_deadline(plan, rule, world)
    return world


def work_of(config: RunConfig, task: Task, model: nn.Module) -> Work:
    """Return what a client's part of the training takes, for each cut that a plan may choose from."""
    if not config.algorithm.splits:
        return whole_model_work(model)
    payload = config.stream.payload if config.split.transport == "stream" else "float32"
    return split_work(as_blocks(model), task.example_input(), sorted(set(_cuts(config, model))), payload)


def edges_here(
    config: RunConfig,
    task: Task,
    model: nn.Module,
    profiles: Sequence[Profile],
    world: World | None,
    transport_of: Callable[[str], Any] | None,
) -> MakeEdge:
    """Return the function that makes the edges that run in this process."""
    algorithm, federation = config.algorithm, config.federation
    client_of = {profile.node_id: profile.partition_id for profile in profiles}
    legal = _cuts(config, model) if algorithm.splits else ()
    cut_of = cut_rule(config.split.cut_layer, legal, client_of, world)
    epochs = config.plan.max_local_rounds if config.rule else task.training.local_epochs
    most = replace(task.training, local_epochs=epochs)
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
            )
        )

    make_edge: MakeEdge = make
    if world and config.rule:
        spec = federation.cloud_strategy if config.is_flat else federation.edge_strategy
        cells = config.cells if config.is_flat else 1
        make_edge = planned(make_edge, config.rule, config.plan, world, cells_per_edge=cells, spec=spec)
    if config.train.weighting == "equal":
        make_edge = equally_weighted(make_edge)
    return knowing(make_edge, profiles, task.objective)


def closed_form_of(
    config: RunConfig, task: Task, model: nn.Module, profiles: Sequence[Profile]
) -> dict[str, float] | None:
    """Return the payload that the PHSFL paper's eq. 17 gives; None where it is not for such a run."""
    if not config.algorithm.splits or config.rule or task.grows:
        return None
    cuts = config.split.cut_layer.numbers
    return closed_form_bits(as_blocks(model), task.example_input(), cuts, config.train, profiles)


def resumable_state(config: RunConfig, folder: ResultsFolder, task: Task) -> dict[str, Any] | None:
    """Return the state to go on from, None if there is none yet; UserError if it is not one of this run's."""
    state = folder.load_state()
    if state is None:
        return None
    if state["data"] != task.data_fingerprint():
        raise bad_value("data-dir", config.data.data_dir, f"the data of the run to resume, {folder.path}")
    if state["round"] > config.federation.global_rounds:
        allowed = f"at least {state['round']}, the rounds that are over"
        raise bad_value("global-rounds", config.federation.global_rounds, allowed)
    return state


def check_same_edges(before: Mapping[str, Sequence[int]], now: Mapping[str, Sequence[int]]) -> None:
    """Raise UserError where a client's edge is another one than in the run to resume: states belong to edges."""
    edge_before = {client: edge for edge, clients in before.items() for client in clients}
    edge_now = {client: edge for edge, clients in now.items() for client in clients}
    for client, edge in sorted(edge_now.items()):
        if edge != edge_before[client]:
            raise UserError(
                f"client {client} is at edge {edge!r}: allowed is {edge_before[client]!r}, as before resume"
            )


@contextmanager
def interrupted_in(folder: Path) -> Iterator[None]:
    """Say of an interrupt where the run can go on."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(folder) from None


@contextmanager
def unwritable_as_user_error(folder: Path) -> Iterator[None]:
    """Make a UserError of an error from writing to a folder, as where a disk is full."""
    try:
        yield
    except OSError as error:
        if not _is_about(error, folder):
            raise
        raise UserError(f"{folder}: can't be written ({error}); the rounds that are over are saved") from None


def _is_about(error: OSError, folder: Path) -> bool:
    """Return whether an error came from writing to a folder, not from a strategy, say; a failed write names no file."""
    if error.filename is None:
        return error.errno in (ENOSPC, EDQUOT, EFBIG, EIO)
    return Path(os.fsdecode(error.filename)).absolute().is_relative_to(folder)
