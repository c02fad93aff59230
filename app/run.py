"""One run: from a validated config and a Grid to a results folder."""

import time
from logging import getLogger
from pathlib import Path

import torch
from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from torch import nn

from app.algorithms import ALGORITHMS
from app.config import RunConfig
from app.federation import assign_edges, gather_clients
from app.reports.bytes import ByteMeter
from app.reports.final import write_final_reports
from app.reports.folder import ResultsFolder
from app.reports.metrics import edge_lines, global_line
from app.reports.progress import BarProgress, LogProgress
from app.tasks.images import client_indices, compute_device, examples, load_data, new_model, normaliser
from clients.evaluation import loss_and_accuracy
from sim.in_process_grid import InProcessGrid
from strategies import Hierarchical

logger = getLogger("espalier")
ProgressDisplay = BarProgress | LogProgress


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
    torch.set_num_threads(config.torch_threads)
    compute_device(config)
    client_indices(config)
    model = new_model(config)
    folder = ResultsFolder.reopen(config) if config.resume else None
    profiles = gather_clients(grid, config)
    client_of = {profile.node_id: profile.partition_id for profile in profiles}
    topology = assign_edges(profiles, config)
    meter = ByteMeter(config.is_flat)
    hierarchical = ALGORITHMS[config.algorithm](
        config,
        topology,
        observers=(meter, progress),
        node_name=lambda node_id: f"client {client_of.get(node_id, node_id)}",
    )
    folder = folder or ResultsFolder.create(config, results_parent)
    logger.info("results go to %s", folder.path)
    final = train(config, grid, hierarchical, model, client_of, folder, meter, progress)
    write_final_reports(config, folder, final, profiles, topology)
    return folder.path


def train(
    config: RunConfig,
    grid: Grid,
    hierarchical: Hierarchical,
    model: nn.Module,
    client_of: dict[int, int],
    folder: ResultsFolder,
    meter: ByteMeter,
    progress: ProgressDisplay,
) -> nn.Module:
    """Run all global rounds, or those that a resumed run has left, and return the model as they leave it.

    After every round its lines are in ``metrics.jsonl`` and its state is saved.
    """
    arrays, first_round, wall_seconds = ArrayRecord(model.state_dict()), 1, 0.0
    if config.resume and (state := folder.load_state()):
        arrays, first_round, wall_seconds = state["arrays"], state["round"] + 1, state["wall_seconds"]
        hierarchical.load_state_dict(state["strategies"])
        if isinstance(grid, InProcessGrid):
            grid.load_state_dict(state["clients"])
        logger.info("resumed after round %d", state["round"])
    device, prepare, test_pool = compute_device(config), normaliser(config), examples(load_data(config).test)
    model.to(device)
    steps = hierarchical.edge_rounds * len(hierarchical.edges)
    progress.begin((first_round - 1) * steps, config.global_rounds * steps)
    started = time.monotonic() - wall_seconds
    try:
        for outcome in hierarchical.rounds(
            grid, arrays, config.global_rounds, first_round=first_round, timeout=config.reply_timeout or None
        ):
            arrays, test = outcome.arrays, None
            if outcome.evaluations:
                model.load_state_dict(arrays.to_torch_state_dict())
                test = loss_and_accuracy(model, test_pool, prepare, device)
            wall_seconds = time.monotonic() - started
            counts = meter.take()
            line = global_line(outcome, counts, client_of, test, wall_seconds)
            folder.append_metrics([*edge_lines(outcome, counts, client_of), line])
            folder.save_state(
                {
                    "round": outcome.number,
                    "wall_seconds": wall_seconds,
                    "arrays": arrays,
                    "edge_arrays": {name: edge.arrays for name, edge in outcome.edges.items()},
                    "strategies": hierarchical.state_dict(),
                    "clients": grid.state_dict() if isinstance(grid, InProcessGrid) else {},
                }
            )
            progress.round_over(outcome.number, config.global_rounds, line)
    finally:
        progress.end()
    model.load_state_dict(arrays.to_torch_state_dict())
    return model
