"""What a run does once everything about it was checked: train, personalise, report."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from logging import getLogger

import torch
from flwr.app import ArrayRecord
from torch import nn

from espalier.app.algorithms.split_edges import check_cuts
from espalier.app.config.run_config import RunConfig
from espalier.app.config.unused import unused_keys
from espalier.app.engines.engine import Engine
from espalier.app.features.feature import Part, Watcher
from espalier.app.ground.strategy_spec import StrategySpec
from espalier.app.planning.limits import free_of_limits
from espalier.app.reports.closed_form import closed_form_bits
from espalier.app.reports.divergence import DivergenceWarning
from espalier.app.reports.final import LEDGER, draw_run, write_clients, write_model, write_summary
from espalier.app.reports.folder import ResultsFolder, RunTitle, fixed_settings
from espalier.app.reports.initial import ROUND_0, initial_figures, initial_figures_of
from espalier.app.reports.metrics import last_round, names_of_figures, personalised_line
from espalier.app.reports.observers import (
    BestRound,
    RoundObserver,
    ServerEvaluation,
    StateSaver,
    WriteMetrics,
    whole_state,
)
from espalier.app.reports.partition import class_counts, write_partition
from espalier.app.reports.progress import BarProgress, LogProgress
from espalier.app.reports.run_state import RunState, as_block
from espalier.app.reports.stopping import SoFar, StopRule, check_stop
from espalier.app.reports.titles import picture_title
from espalier.app.reports.tracker import Tracking
from espalier.app.run.ledger import ledger_of
from espalier.app.run.resume import file_hashes, fingerprint_of
from espalier.app.run.rounds import train
from espalier.app.settings.sections import Split, Stop, TrainSettings
from espalier.app.tasks.common import compute_device
from espalier.app.tasks.task import Task
from espalier.app.wiring.one_server import Assembled
from espalier.clients.messages.train import LOSS
from espalier.clients.shared.cut import as_blocks
from espalier.strategies import Profile
from espalier.strategies.exchange import converse
from espalier.strategies.randomness import derived_seed, sample_size
from espalier.strategies.split import FineTuning, Personalised
from espalier.strategies.views import MemberGrid

logger = getLogger("espalier")
ProgressDisplay = BarProgress | LogProgress


@dataclass(frozen=True)
class CheckedRun:
    """A run that was checked and has a folder.

    Parameters
    ----------
    config : RunConfig
        What to run.
    engine : Engine
        Where the clients are.
    task : Task
        What they train for.
    model : nn.Module
        The whole model; evaluated and saved, with the weights that rounds give.
    begin : Callable[[], ArrayRecord]
        Returns the weights that the first round begins with, see `espalier.app.run.travelling.travelling_weights`. A
        lazy model has none before its evaluation.
    frozen : ArrayRecord
        Those of the model's weights that are never trained and do not travel.
    federation : Assembled
        The algorithm, and what counts its bytes and plans its rounds.
    folder : ResultsFolder
        Where it writes.
    best : BestRound, optional
        Keeps the best round's model; None where clients hold back no examples.
    trackers : Sequence[Tracking]
        Get settings and figures.
    watchers : Sequence[Watcher]
        Get figures while it lasts.
    """

    config: RunConfig
    engine: Engine
    task: Task
    model: nn.Module
    begin: Callable[[], ArrayRecord]
    frozen: ArrayRecord
    federation: Assembled
    folder: ResultsFolder
    best: BestRound | None
    trackers: Sequence[Tracking]
    watchers: Sequence[Watcher]


def carry_out(checked: CheckedRun, state: RunState | None, progress: ProgressDisplay) -> None:
    """Train, personalise where the config asks for it, and report."""
    config, federation, folder, model = checked.config, checked.federation, checked.folder, checked.model
    if federation.world:
        folder.write_json("world.json", federation.world.describe())
        _write_world_files(checked, 0)
        if line := free_of_limits(federation.world, config.plan.battery_joules, config.edge_rounds_in_all):
            logger.info(line)
    for tracker in checked.trackers:
        tracker.run_begins(config.as_dict(), folder.path)
    closed_form = None
    if config.algorithm.splits and not (config.rule or config.algorithm.auxiliary):
        closed_form = closed_form_of(config.split, config.train, checked.task, model, federation.profiles)
    model.to(compute_device(config.device))
    lines = folder.read_metrics()
    if state is None:
        _write_round_0(checked)
        if config.report.ledger and not config.why_no_ledger:
            folder.write_json(LEDGER, asdict(ledger_of(config.as_dict(), federation)))
    else:
        check_stop(config.stop, names_of_figures(lines))
        for part in federation.parts:
            part.go_on_from(lines)
        for watcher in checked.watchers:
            watcher.go_on_from(lines)
    so_far = SoFar.of(lines)
    arrays = train(
        checked.engine,
        federation.hierarchical,
        checked.begin(),
        _last_round(config.stop, config.federation.global_rounds, state, so_far, federation.parts),
        _observers_of(checked, closed_form, so_far),
        progress,
        timeout_seconds=config.reply_seconds,
        state=state,
    )
    if config.algorithm.fine_tunes and config.fine_tune.steps:
        _personalise(checked, arrays)
    _write_world_files(checked, config.edge_rounds_in_all)
    _report(checked, arrays, closed_form)
    for tracker in checked.trackers:
        tracker.run_over(folder.read_json("summary.json"))


def _write_world_files(checked: CheckedRun, num_written: int) -> None:
    """Write what there is of the world for all edge rounds, unless so many are written and no edge was beyond them."""
    world, num_rounds = checked.federation.world, checked.config.edge_rounds_in_all
    if world and (num_rounds := max(num_rounds, world.last_planned)) > num_written:
        for name, write in world.files(num_rounds).items():
            checked.folder.write_file(name, write)


def _last_round(stop: Stop, num_rounds: int, state: RunState | None, so_far: SoFar, parts: Sequence[Part]) -> int:
    """Return the last global round, as far as that is known: a resumed run may have been over."""
    reasons = (so_far.reason(stop), *(part.is_over() for part in parts))
    if state and (reason := next(filter(None, reasons), "")):
        if state.round < num_rounds:
            logger.info("the run is over since round %d by %s; to go on, change that", state.round, reason)
        return state.round
    return num_rounds


def _write_round_0(checked: CheckedRun) -> None:
    """Evaluate the model before any training, if it is evaluated at all."""
    config = checked.config
    if config.algorithm.has_model and config.report.evaluate_every:
        here = _evaluated_here(config.num_clients_here, config.report.evaluate_clients, config.seed)
        figures = initial_figures(checked.task, checked.model, compute_device(config.device), here)
        check_stop(config.stop, figures["test"])
        checked.folder.write_json(ROUND_0, figures)


def _evaluated_here(num_clients: int, share: float, seed: int) -> Sequence[int]:
    """Return the numbers of the clients on which a model is evaluated before any training."""
    clients = range(num_clients)
    if share == 1 or not clients:
        return clients
    count = sample_size(num_clients, share) if share else 0
    return sorted(random.Random(derived_seed(seed, "evaluate")).sample(clients, count))


def _observers_of(checked: CheckedRun, closed_form: Mapping[str, float] | None, so_far: SoFar) -> list[RoundObserver]:
    """Return those who watch the rounds; each makes use of what those before it found out of a round."""
    config, federation, folder = checked.config, checked.federation, checked.folder
    evaluations: list[ServerEvaluation] = []
    if config.algorithm.has_model:
        device, every = compute_device(config.device), config.report.evaluate_every
        evaluations.append(ServerEvaluation(checked.model, checked.frozen, checked.task, device, every))
    stop_rule = StopRule(
        config.stop,
        federation.hierarchical,
        checked.engine.grid,
        config.reply_seconds,
        federation.meter,
        federation.world,
        evaluations,
        so_far,
        federation.parts,
    )
    untrained = initial_figures_of(folder).get("test", {}).get(LOSS)
    specs = (config.federation.cloud_strategy, config.federation.edge_strategy)
    server_rate = config.split.server_learning_rate if config.algorithm.splits else 0.0
    divergence = DivergenceWarning(untrained, _smaller_steps(config.train.learning_rate, server_rate, specs))
    observers: list[RoundObserver] = [*evaluations, divergence, stop_rule]
    observers.append(
        WriteMetrics(
            folder,
            federation.meter,
            federation.seconds,
            federation.client_of,
            closed_form,
            checked.trackers,
            checked.watchers,
            federation.parts,
            validates=checked.best is not None,
        )
    )
    if checked.best:
        observers.append(checked.best)
    hierarchical, world, data = federation.hierarchical, federation.world, fingerprint_of(checked.task, config.data)
    settings, edges = fixed_settings(config.as_dict()), {name: as_block(own) for name, own in federation.edges.items()}
    files, meter = file_hashes(config.as_dict(), unused_keys(config)), federation.meter
    kept = (hierarchical, checked.engine, world, data, edges, settings, files, meter, checked.best)
    observers.append(StateSaver(folder, *kept))
    return observers


def _smaller_steps(rate: float, server_rate: float, specs: Sequence[StrategySpec]) -> str:
    """Return what to try where the model diverges, with the keys that set its steps."""
    steps = [f"learning-rate (now {rate:g})"]
    if server_rate:
        steps.append(f"split.server-learning-rate (now {server_rate:g})")
    others = " and ".join(f"{spec.key} = {spec.text!r}" for spec in specs if not spec.is_plain)
    return f"try a smaller {' or '.join(steps)}" + (f", or other steps of {others}" if others else "")


def _personalise(checked: CheckedRun, arrays: ArrayRecord) -> None:
    """Fine-tune every client's head of the last global model; save the heads that are here, and add the figures.

    Heads are judged by the figures that the run has of the test pool. Who does not tell those that every evaluation
    has is left out of the evaluation.
    """
    config, federation, folder, grid = checked.config, checked.federation, checked.folder, checked.engine.grid
    hierarchical, fine_tuning = federation.hierarchical, FineTuning(config.fine_tune.steps, config.fine_tune.rate)
    results: dict[str, Personalised] = converse(
        grid,
        {
            name: edge.personalise(arrays, fine_tuning, MemberGrid(grid, hierarchical.topology[name]))
            for name, edge in hierarchical.edges.items()
        },
        timeout_seconds=config.reply_seconds,
        on_message=lambda *what: federation.meter.on_message("edge", *what),
    )
    results = {name: result.judged_by(checked.task.objective.figures) for name, result in results.items()}
    for name, result in results.items():
        hierarchical.log_failures("personalisation", name, result.failures)
    heads = {federation.client_of[n]: head for result in results.values() for n, head in result.heads.items()}
    if heads:  # those of clients with a tail stay there
        folder.write_file("heads.pt", lambda file: torch.save(dict(sorted(heads.items())), file))
    lines = folder.read_metrics()
    number, test = last_round(lines)["round"], next((line["test"] for line in reversed(lines) if "test" in line), None)
    sent, validates = federation.meter.drain(), checked.best is not None
    folder.append_metrics([personalised_line(number, results, sent, federation.client_of, test, validates=validates)])


def _report(checked: CheckedRun, arrays: ArrayRecord, closed_form: Mapping[str, float] | None) -> None:
    """Write the models, the tables, the summary and, when all figures are there, the plots."""
    config, federation, folder, model = checked.config, checked.federation, checked.folder, checked.model
    models = {"model.pt": arrays}
    if checked.best and checked.best.arrays is not None:
        models["best-model.pt"] = checked.best.arrays
    for name, weights in models.items():
        model.load_state_dict(whole_state(model, weights, checked.frozen))
        write_model(folder, name, model)
    if about := checked.task.describe():
        folder.write_json("data.json", about)
    # From the file, so that a resumed run reports on all of its rounds.
    lines, title = folder.read_all_lines(), RunTitle(config.algorithm.name, config.data.title, config.seed)
    write_clients(folder, lines, federation.profiles, federation.hierarchical.topology)
    write_partition(
        folder, class_counts(federation.profiles, federation.hierarchical.topology, about.get("classes", ()))
    )
    write_summary(title, folder, lines, closed_form, config.stop, config.federation.global_rounds)
    if config.report.plots:
        heading = picture_title(config.algorithm.name, config.data, config.federation.num_clients, config.seed)
        draw_run(heading, folder, lines)


def closed_form_of(
    split: Split, train_settings: TrainSettings, task: Task, model: nn.Module, profiles: Sequence[Profile]
) -> dict[str, float] | None:
    """Return the payload that the PHSFL paper's eq. 17 gives of split training; None for other tasks."""
    if task.grows or not split.tail_layer.is_none:
        return None
    cuts = [cut.first for cut in check_cuts(split, model)]
    return closed_form_bits(as_blocks(model), task.example_input(), cuts, train_settings, profiles)
