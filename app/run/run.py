"""One run: from a validated config and an engine to a results folder."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from logging import getLogger
from pathlib import Path

from flwr.serverapp import Grid

from espalier.app.algorithms.split_edges import frozen_weights
from espalier.app.config.run_config import RunConfig
from espalier.app.config.together import check_strategies, falling_short
from espalier.app.config.unused import unused_keys
from espalier.app.engines.engine import Engine, keeps_nodes, serves_edges
from espalier.app.engines.opening import Opening, open_engine
from espalier.app.features.table import watching
from espalier.app.ground.errors import UserError
from espalier.app.ground.memory import keep_memory
from espalier.app.reports.folder import ResultsFolder, RunTitle, refuse_unwritable, refuse_used
from espalier.app.reports.made_by import note_made_by
from espalier.app.reports.metrics import nobody_could_train, why_no_model
from espalier.app.reports.observers import BestRound
from espalier.app.reports.run_state import RunState
from espalier.app.reports.tracker import load_trackers
from espalier.app.run.checked_run import CheckedRun, ProgressDisplay, carry_out
from espalier.app.run.endings import (
    ended_program_as_user_error,
    interrupted_in,
    lost_grid_as_user_error,
    own_code_as_user_error,
    unwritable_as_user_error,
)
from espalier.app.run.resume import (
    UnfitStateError,
    check_edges_for_moves,
    check_same_edges,
    file_hashes,
    fingerprint_of,
    resumable_state,
    take_back,
    take_best_back,
    unfit_state,
)
from espalier.app.run.travelling import travelling_weights
from espalier.app.tasks.common import compute_device, set_up_torch
from espalier.app.tasks.recording import try_recording
from espalier.app.tiers.edge_host import LOOK_SECONDS, serve
from espalier.app.tiers.listener import EdgeListener
from espalier.app.tiers.own_hosts import edge_run, over_hosts
from espalier.app.tiers.remote_edge import EdgeFailed
from espalier.app.tiers.served import assemble_served
from espalier.app.wiring.one_server import assemble, checked_task, streams_of
from espalier.app.wiring.streams import Streams

logger = getLogger("espalier")


def engine_of(config: RunConfig, grid: Grid | None = None, cores: int = 0) -> AbstractContextManager[Engine]:
    """Open the engine that a run config names.

    Parameters
    ----------
    config : RunConfig
        The run.
    grid : Grid, optional (default: None)
        The one of Flower's runtime, where it calls.
    cores : int (default: 0)
        Of this machine, for the run; 0: all.
    """
    return open_engine(
        config.engine,
        Opening(
            num_clients=config.federation.num_clients,
            num_edges=config.num_edges,
            settings=config.as_dict(),
            seed=config.seed,
            stack=config.decided.stack,
            threads=config.train.torch_threads,
            on_gpu=compute_device(config.device).type == "cuda",
            grid=grid,
            workers=config.decided.workers,
            cores=cores,
        ),
    )


def _checked(config: RunConfig, results_parent: Path) -> Path:
    """Check strategies, warn of what has no effect or less than it says, and return where the results folder goes."""
    check_strategies(config)
    given = config.as_dict()
    for key, reason in unused_keys(config).items():
        logger.warning("%s = %r has no effect: %s", key, given[key], reason)
    for key, reason in falling_short(config).items():
        logger.warning("%s = %r: %s", key, given[key], reason)
    set_up_torch(config.device, config.train.torch_threads, config.train.precision)
    title = RunTitle(config.algorithm.name, config.data.title, config.seed)
    path = ResultsFolder.path_for(config.output_dir, results_parent, title)
    if not config.resume:
        # A folder without a name of the user's gets one that is free when it is made.
        (refuse_used if config.output_dir else refuse_unwritable)(path)
    return path


@ended_program_as_user_error()
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
    path = _checked(config, results_parent)
    with ExitStack() as opened:
        folder = None
        if config.resume:
            reopened = ResultsFolder.reopen(Path(config.resume), config.as_dict(), RunConfig().as_dict())
            folder = opened.enter_context(reopened)
        trackers = load_trackers(config.report.tracker)
        for tracker in trackers:
            opened.callback(tracker.close)
        watchers = opened.enter_context(watching(config, engine.grid))
        task, model = checked_task(config)
        if config.trains_here and config.decided.records:
            try_recording(task, model, compute_device(config.device))
        begin = partial(travelling_weights, config.algorithm, config.split, config.seed, task, model)
        state = None
        if folder:
            state = resumable_state(
                folder,
                data_fingerprint=fingerprint_of(task, config.data),
                files=file_hashes(config.as_dict(), unused_keys(config)),
                settings=config.as_dict(),
                defaults=RunConfig().as_dict(),
                weights=begin(),
            )
        opened.enter_context(lost_grid_as_user_error(folder.path if folder else path))
        streams = opened.enter_context(streams_of(config, model, task, engine.stream_patience_seconds))
        engine = opened.enter_context(_staying(engine, streams if config.devices_stay else None))
        if serves_edges(engine) and not config.has_clients_in_workers:
            federation, engine = assemble_served(config, engine, task, model, streams, observers=(progress,))
        elif not config.here.reaches_clients:
            federation = over_hosts(config, engine.grid, task, model, observers=(progress,))
        else:
            federation = assemble(
                config, engine.grid, task, model, streams, (progress,), lanes=engine.lanes, numbers=engine.numbers
            )
        if folder is None:
            create = ResultsFolder.create if config.output_dir else ResultsFolder.create_beside_others
            folder = opened.enter_context(create(path, config.as_dict()))
        logger.info("results go to %s", folder.path)
        best = BestRound(begin()) if config.data.validation_share else None
        frozen = frozen_weights(config.algorithm, model)
        checked = CheckedRun(config, engine, task, model, begin, frozen, federation, folder, best, trackers, watchers)
        with lost_grid_as_user_error(folder.path), unwritable_as_user_error(folder.path), interrupted_in(folder.path):
            try:
                with own_code_as_user_error(config.strategies_here, config.algorithm, folder.path):
                    if state:
                        _take_all_back(checked, state)
                    note_made_by(folder)
                    if config.resume:
                        folder.go_on_after(state.round if state else 0, config.as_dict())
                    carry_out(checked, state, progress)
            except (UnfitStateError, EdgeFailed) as error:  # an edge may have to wait for its first request
                raise folder.other_state(str(error)) from error
        lines = folder.read_metrics()
        if why := why_no_model(lines):
            message = f"{folder.path}: {why} in any round; metrics.jsonl has the reasons"
            if not (config.may_train_nobody and nobody_could_train(lines)):
                raise UserError(message)
            logger.warning(message)
        return folder.path


def _staying(engine: Engine, streams: Streams | None) -> AbstractContextManager[Engine]:
    """Return the engine of a run, with nodes that stay on the streams, if there are any, while the block lasts."""
    return engine.staying(streams.staying) if streams and keeps_nodes(engine) else nullcontext(engine)


def _take_all_back(checked: CheckedRun, state: RunState) -> None:
    """Go to where a run that is resumed was."""
    federation = checked.federation
    if checked.best:
        take_best_back(checked.best, state, checked.folder)
    moves = "deploy.nodes-move" in checked.config.movers
    (check_edges_for_moves if moves else check_same_edges)(state.edges, federation.edges)
    with unfit_state():
        federation.meter.load_state_dict(state.bytes_at_work)
    take_back(state, federation.hierarchical, checked.engine, federation.world)


@ended_program_as_user_error()
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
    path = _checked(config, results_parent)
    task, model = checked_task(config)
    with (
        EdgeListener(Path(config.deploy.edge_folder).expanduser()) as listener,
        streams_of(config, model, task, engine.stream_patience_seconds) as streams,
        _staying(engine, streams if config.devices_stay else None) as reached,
        watching(config, engine.grid) as watchers,
    ):
        edge = edge_run(config, reached.grid, task, model, streams)
        create = ResultsFolder.create if config.output_dir else ResultsFolder.create_beside_others
        with create(path, config.as_dict()) as folder:
            edge.report_to(folder, watchers)
            keep_memory()
            serve(edge, listener, is_over, look_seconds)
