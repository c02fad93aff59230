"""One run: from a validated config and a Grid to a results folder."""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from errno import EDQUOT, EFBIG, EIO, ENOSPC
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from torch import nn

from espalier.app.algorithms import (
    build_algorithm,
    check_averages,
    checked_cuts,
    frozen_head,
    under_cloud,
    unsavable_as_user_error,
    world_of,
)
from espalier.app.config.sections import RunConfig
from espalier.app.config.together import check_cell_size, check_strategies
from espalier.app.errors import UserError, bad_value
from espalier.app.federation import assign_edges, gather_clients
from espalier.app.memory import keep_memory
from espalier.app.personalisation import personalise
from espalier.app.reports.bytes import ByteMeter
from espalier.app.reports.closed_form import closed_form_bits, has_closed_form
from espalier.app.reports.final import write_final_reports
from espalier.app.reports.folder import ResultsFolder, refuse_used
from espalier.app.reports.metrics import edge_lines, global_line
from espalier.app.reports.progress import BarProgress, LogProgress
from espalier.app.streams import Streams, measures, streams_of, trains_by_stream
from espalier.app.tasks.common import compute_device, set_up_torch
from espalier.app.tasks.family import family
from espalier.app.tiers.cloud import gather_edges, remote_edges
from espalier.app.wireless import World, check_deadline
from espalier.clients.evaluation import loss_and_accuracy
from espalier.sim.in_process_grid import InProcessGrid
from espalier.strategies import Hierarchical, Profile

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
    closed_form : Mapping[str, float], optional
        The payload that a formula gives where models are split.
    """

    profiles: Sequence[Profile]
    client_of: Mapping[int, int]
    hierarchical: Hierarchical
    meter: ByteMeter
    world: World | None
    closed_form: Mapping[str, float] | None

    @property
    def edges(self) -> dict[str, list[int]]:
        """The numbers of the clients of each edge."""
        return {
            name: [self.client_of[node_id] for node_id in members]
            for name, members in self.hierarchical.topology.items()
        }


def run(config: RunConfig, grid: Grid, progress: ProgressDisplay, results_parent: Path) -> Path:
    """Run the config's algorithm and return the results folder.

    Parameters
    ----------
    config : RunConfig
        What to run.
    grid : Grid
        Reaches the clients.
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
    set_up_torch(config)
    folder = ResultsFolder.reopen(config) if config.resume else None
    if not folder and config.output_dir:
        refuse_used(Path(config.output_dir).expanduser().absolute())
    family(config).check_data(config)
    model = family(config).new_model(config)
    check_averages(config, model)
    if config.is_split:
        checked_cuts(config)
    state = resumable_state(config, folder) if folder else None
    with streams_of(config) as streams:
        federation = assemble(config, grid, model, progress, streams)
        if state:
            check_same_edges(state["edges"], federation.edges)
        return run_with(config, grid, federation, model, folder, state, progress, results_parent)


def run_with(
    config: RunConfig,
    grid: Grid,
    federation: Federation,
    model: nn.Sequential,
    folder: ResultsFolder | None,
    state: dict[str, Any] | None,
    progress: ProgressDisplay,
    results_parent: Path,
) -> Path:
    """Train with a federation, report, and return the results folder, a new one unless a run is resumed."""
    if folder:
        folder.go_on_after(state["round"] if state else 0, config)
    else:
        folder = ResultsFolder.create(config, results_parent)
    logger.info("results go to %s", folder.path)
    try:
        if federation.world:
            folder.write_json("world.json", federation.world.describe())
        arrays = train(config, grid, model, federation, folder, state, progress)
        personalise(config, grid, federation.hierarchical, arrays, federation.client_of, folder, federation.meter)
        write_final_reports(
            config, folder, model, federation.profiles, federation.hierarchical.topology, federation.closed_form
        )
    except OSError as error:
        if not _is_about(error, folder.path):
            raise
        raise UserError(f"{folder.path}: can't be written ({error}); the rounds that are over are saved") from None
    if not any(line.get("trained") for line in folder.read_metrics()):
        message = f"{folder.path}: no client trained in any round; metrics.jsonl says why each was left out"
        if not config.is_planned:
            raise UserError(message)
        logger.warning(message)  # that nobody can take part is what such a run may have to say
    return folder.path


def _is_about(error: OSError, folder: Path) -> bool:
    """Return whether an error came from writing to a folder, not from a strategy, say; a failed write names no file."""
    if error.filename is None:
        return error.errno in (ENOSPC, EDQUOT, EFBIG, EIO)
    return Path(os.fsdecode(error.filename)).absolute().is_relative_to(folder)


def assemble(
    config: RunConfig, grid: Grid, model: nn.Sequential, progress: ProgressDisplay, streams: Streams | None = None
) -> Federation:
    """Wait for the clients, group them and build the algorithm; UserError for whatever the user has to change."""
    if config.deploy.role == "cloud":
        return assemble_cloud(config, grid, model, progress)
    with streams.probes() if streams and measures(config) else nullcontext() as measure:
        profiles = gather_clients(grid, config, measure)
    client_of = {profile.node_id: profile.partition_id for profile in profiles}
    topology = assign_edges(profiles, config)
    meter = ByteMeter({"edge": "cloud"} if config.is_flat else {"edge": "edge", "cloud": "cloud"})
    world = None
    try:
        if config.is_planned:
            if not config.is_flat:  # nodes may have chosen their edges
                check_cell_size(config, min(map(len, topology.values())))
            world = world_of(config, topology, client_of, profiles)
            check_deadline(config, world)
        hierarchical = build_algorithm(
            config,
            topology,
            client_of,
            world,
            partial(streams.transport, meter) if streams and trains_by_stream(config) else None,
            observers=(meter, progress),
            node_name=lambda node_id: f"client {client_of.get(node_id, node_id)}",
        )
    except ValueError as error:
        raise UserError(f"{error} (see cloud-strategy, edge-strategy, num-clients and num-edges)") from None
    closed_form = closed_form_bits(config, model, profiles) if has_closed_form(config) else None
    return Federation(profiles, client_of, hierarchical, meter, world, closed_form)


def assemble_cloud(config: RunConfig, grid: Grid, model: nn.Sequential, progress: ProgressDisplay) -> Federation:
    """Wait for edges that have hosts of their own; the rest as in `assemble`, plans and their costs being theirs."""
    edges = gather_edges(grid, config)
    profiles = sorted((client for edge in edges for client in edge.clients), key=lambda p: p.partition_id)
    client_of = {profile.node_id: profile.partition_id for profile in profiles}
    meter = ByteMeter({"cloud": "cloud"})
    try:
        hierarchical = under_cloud(
            config,
            remote_edges(config, edges),
            assign_edges(profiles, config),
            observers=(meter, progress),
            node_name=lambda node_id: f"client {client_of.get(node_id, node_id)}",
        )
    except ValueError as error:
        raise UserError(f"{error} (see cloud-strategy and num-edges)") from None
    closed_form = closed_form_bits(config, model, profiles) if has_closed_form(config) else None
    return Federation(profiles, client_of, hierarchical, meter, None, closed_form)


def resumable_state(config: RunConfig, folder: ResultsFolder) -> dict[str, Any] | None:
    """Return the state to go on from, None if there is none yet; UserError if it is not one of this run's."""
    state = folder.load_state()
    if state is None:
        return None
    if state["data"] != family(config).data_fingerprint(config):
        raise bad_value("data-dir", config.data.data_dir, f"the data of the run to resume, {folder.path}")
    if state["round"] > config.federation.global_rounds:
        raise bad_value(
            "global-rounds", config.federation.global_rounds, f"at least {state['round']}, the rounds that are over"
        )
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


def train(
    config: RunConfig,
    grid: Grid,
    model: nn.Sequential,
    federation: Federation,
    folder: ResultsFolder,
    state: dict[str, Any] | None,
    progress: ProgressDisplay,
) -> ArrayRecord:
    """Run all global rounds, or those that a resumed run has left, and return the global model; `model` has it too.

    After every round its lines are in ``metrics.jsonl`` and its state is saved.
    """
    frozen, hierarchical, world = frozen_head(config), federation.hierarchical, federation.world
    arrays = ArrayRecord({n: array for n, array in ArrayRecord(model.state_dict()).items() if n not in frozen})
    first_round, wall_seconds = 1, 0.0
    if state:
        arrays, first_round, wall_seconds = state["arrays"], state["round"] + 1, state["wall_seconds"]
        hierarchical.load_state_dict(state["strategies"])
        if isinstance(grid, InProcessGrid):
            grid.load_state_dict(state["clients"])
        if world:
            world.load_state_dict(state["world"])
        logger.info("resumed after round %d", state["round"])
    tasks = family(config)
    fingerprint, device = tasks.data_fingerprint(config), compute_device(config)
    prepare, test_pool = tasks.normaliser(config), tasks.test_examples(config)
    model.to(device)
    steps = hierarchical.edge_rounds * len(hierarchical.edges)
    keep_memory()
    progress.begin((first_round - 1) * steps, config.federation.global_rounds * steps)
    started = time.monotonic() - wall_seconds
    try:
        for outcome in hierarchical.rounds(
            grid,
            arrays,
            config.federation.global_rounds,
            first_round=first_round,
            timeout=config.deploy.reply_timeout or None,
        ):
            arrays, test = outcome.arrays, None
            if config.has_model and hierarchical.evaluates_after(outcome.number, config.federation.global_rounds):
                model.load_state_dict(ArrayRecord({**arrays, **frozen}).to_torch_state_dict())
                test = loss_and_accuracy(model, test_pool, prepare, device)
            wall_seconds = time.monotonic() - started
            counts = federation.meter.take()
            lines = edge_lines(outcome, counts, federation.client_of)
            line = global_line(outcome, counts, federation.client_of, test, federation.closed_form, wall_seconds)
            if world:
                lines = [edge | {"plans": world.edges[edge["edge"]].take_reports()} for edge in lines]
                line |= world.end_round()
            folder.append_metrics([*lines, line])
            with unsavable_as_user_error():
                strategies = hierarchical.state_dict()
            folder.save_state(
                {
                    "round": outcome.number,
                    "data": fingerprint,
                    "edges": federation.edges,
                    "wall_seconds": wall_seconds,
                    "arrays": arrays,
                    "edge_arrays": {name: edge.arrays for name, edge in outcome.edges.items()},
                    "strategies": strategies,
                    "clients": grid.state_dict() if isinstance(grid, InProcessGrid) else {},
                    "world": world.state_dict() if world else {},
                }
            )
            progress.round_over(outcome.number, config.federation.global_rounds, line)
    finally:
        progress.end()
    model.load_state_dict(ArrayRecord({**arrays, **frozen}).to_torch_state_dict())
    return arrays
