"""Those who watch the rounds of a run: evaluation, metrics, saving and tracking."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch
from flwr.app import ArrayRecord
from torch import Tensor, nn

from espalier.app.engines.engine import Engine
from espalier.app.features.feature import Part, RoundOver, Watcher
from espalier.app.meters.bytes import ByteMeter, Link
from espalier.app.meters.seconds import SecondsMeter
from espalier.app.planning.world import PlannedWorld
from espalier.app.reports.best import Score, validation_score
from espalier.app.reports.folder import ResultsFolder
from espalier.app.reports.metrics import edge_lines, global_line, seconds_line, validation_of
from espalier.app.reports.run_state import RunState
from espalier.app.reports.tracker import Tracking
from espalier.app.tasks.task import Task
from espalier.app.wiring.cloud import unsavable_as_user_error
from espalier.clients.task import Examples
from espalier.clients.whole.evaluation import figures_on
from espalier.strategies import Hierarchical, Round
from espalier.strategies.outcomes import is_evaluated
from espalier.strategies.reply_faults import array_fault


@dataclass
class RoundReport:
    """A global round that is over, and what its observers found out so far.

    Parameters
    ----------
    outcome : Round
        What the round gave.
    num_rounds : int
        The last global round of the run.
    wall_seconds : Callable[[], float]
        Seconds since the run began, those before an interruption included.
    test : Mapping[str, float], optional
        Loss, accuracy and what else the task measures, of the global model on the whole test pool.
    line : dict[str, Any]
        The round's global line in ``metrics.jsonl``.
    seconds : float
        `wall_seconds` when the line was written.
    stopped : str
        Why the run ends with the round; nothing if it goes on.
    """

    outcome: Round
    num_rounds: int
    wall_seconds: Callable[[], float]
    test: Mapping[str, float] | None = None
    line: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    stopped: str = ""


class RoundObserver(Protocol):
    """Is told of every global round when it is over."""

    def round_over(self, report: RoundReport) -> None:
        """Notice a round; what is found out goes into the report."""


def whole_state(model: nn.Module, arrays: ArrayRecord, frozen: ArrayRecord) -> dict[str, Tensor]:
    """Return the state of a whole model: what a round gave, without what is beside the model, and what is frozen."""
    weights = {**arrays, **frozen}
    return dict(ArrayRecord({name: weights[name] for name in model.state_dict()}).to_torch_state_dict())


@dataclass(frozen=True)
class ServerEvaluation:
    """Evaluates the global model on the whole test pool, in every so many rounds and in the last.

    Parameters
    ----------
    model : nn.Module
        Takes the weights of the round.
    frozen : ArrayRecord
        Weights that do not travel.
    task : Task
        Has the test pool.
    device : torch.device
        Where the model is.
    every : int
        So many; 0: only in the last.
    """

    model: nn.Module
    frozen: ArrayRecord
    task: Task
    device: torch.device
    every: int

    @cached_property
    def _pool(self) -> tuple[Examples, Callable[[Any], Any]]:
        return self.task.test_examples(), self.task.normaliser()

    def round_over(self, report: RoundReport) -> None:
        """Evaluate the round's model."""
        if is_evaluated(report.outcome.number, report.num_rounds, self.every):
            self.model.load_state_dict(whole_state(self.model, report.outcome.arrays, self.frozen))
            pool, prepare = self._pool
            report.test = figures_on(self.model, pool, prepare, self.device, self.task.objective)


@dataclass(frozen=True)
class WriteMetrics:
    """Appends the round's lines to ``metrics.jsonl``, and its line to ``seconds.jsonl``.

    Parameters
    ----------
    folder : ResultsFolder
        Where it is.
    meter : ByteMeter
        Counts bytes.
    seconds : SecondsMeter
        Tells how long clients and edges took.
    client_of : Mapping[int, int]
        Client number by node id.
    closed_form : Mapping[str, float], optional
        The payload by a formula.
    trackers : Sequence[Tracking] (default: none)
        Get the lines too.
    watchers : Sequence[Watcher] (default: none)
        So do these.
    parts : Sequence[Part] (default: none)
        What features put into the run reports of it.
    validates : bool (default: False)
        Clients tell figures of examples that they hold back.
    """

    folder: ResultsFolder
    meter: ByteMeter
    seconds: SecondsMeter
    client_of: Mapping[int, int]
    closed_form: Mapping[str, float] | None
    trackers: Sequence[Tracking] = ()
    watchers: Sequence[Watcher] = ()
    parts: Sequence[Part] = ()
    validates: bool = False

    def round_over(self, report: RoundReport) -> None:
        """Write the lines of the round."""
        at_work = {name: rounds for part in self.parts for name, rounds in part.edge_rounds_at_work().items()}
        report.seconds, of_edges = report.wall_seconds(), Counter[Link]()
        for name in report.outcome.edges:
            of_edges.update(self.meter.take(name, at_work.get(name, ())))
        counts = self.meter.drain(at_work)
        lines = edge_lines(report.outcome, of_edges, self.client_of)
        line = global_line(report.outcome, counts, self.client_of, report.test, self.closed_form, report.seconds)
        if self.validates:
            line |= validation_of(report.outcome.evaluations.values(), report.test)
        over = RoundOver(report.outcome, report.outcome.number == report.num_rounds, at_work)
        for part in self.parts:
            lines = [edge | part.of_edge(edge["edge"], over) for edge in lines]
            line |= part.end_round(over)
        took = {name: self.seconds.take(edge) for name, edge in report.outcome.edges.items()}
        self.folder.append_seconds(seconds_line(report.outcome.number, took))
        self.folder.append_metrics([*lines, line])
        report.line = line
        for watcher in self.watchers:
            watcher.lines_over([*lines, line])
        for tracker in self.trackers:
            tracker.edges_over(report.outcome.number, lines)
            tracker.round_over(report.outcome.number, line)


@dataclass
class BestRound:
    """Keeps the model of the best round, of equal ones the first, as `best_line` finds it.

    It is saved within the state of the run, so that a power cut leaves it and the round to go on from together.

    Parameters
    ----------
    reference : ArrayRecord
        Weights of the form of those that the rounds give.
    """

    reference: ArrayRecord
    number: int = field(default=0, init=False)
    score: Score = field(default=(-math.inf, -math.inf), init=False)
    arrays: ArrayRecord | None = field(default=None, init=False)

    def round_over(self, report: RoundReport) -> None:
        """Take the round's model if it is better than all before; its line has been written."""
        score = validation_score(report.line)
        if score is not None and score > self.score:
            self.number, self.score, self.arrays = report.outcome.number, score, report.outcome.arrays

    def state_dict(self) -> dict[str, Any]:
        """Return the best round, nothing if there is none yet."""
        return {} if self.arrays is None else {"round": self.number, "score": list(self.score), "arrays": self.arrays}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned; ValueError if it is not of such a run."""
        if not state:
            return
        number, score, arrays = state["round"], state["score"], state["arrays"]
        if isinstance(score, float):  # of an edition in which the first of equal ones was the best
            score = [score, math.inf]
        if not (
            isinstance(number, int)
            and isinstance(score, list)
            and [type(part) for part in score] == [float] * 2
            and isinstance(arrays, ArrayRecord)
        ):
            raise ValueError("best: it is no round with its score and model")
        if fault := array_fault(arrays, self.reference):
            raise ValueError(f"best: {fault}")
        self.number, self.score, self.arrays = number, (score[0], score[1]), arrays


@dataclass(frozen=True)
class StateSaver:
    """Saves what a resumed run needs.

    Parameters
    ----------
    folder : ResultsFolder
        Where it goes.
    hierarchical : Hierarchical
        Its strategies have state.
    engine : Engine
        Its clients may have.
    world : PlannedWorld, optional
        Plans have.
    fingerprint : str
        Of the data.
    edges : Mapping[str, Sequence[int]]
        Client numbers by edge.
    settings : Mapping[str, Any]
        Those that a resumed run must not change, by key.
    files : Mapping[str, str]
        Hashes of the files that it must not change either, by the keys that name them.
    meter : ByteMeter
        Has the bytes of edges at work.
    best : BestRound, optional (default: None)
        Told of the round before; None where nothing is held back.
    """

    folder: ResultsFolder
    hierarchical: Hierarchical
    engine: Engine
    world: PlannedWorld | None
    fingerprint: str
    edges: Mapping[str, Sequence[int]]
    settings: Mapping[str, Any]
    files: Mapping[str, str]
    meter: ByteMeter
    best: BestRound | None = None

    def round_over(self, report: RoundReport) -> None:
        """Save the state after the round."""
        outcome = report.outcome
        with unsavable_as_user_error():
            strategies = self.hierarchical.state_dict()
        self.folder.save_state(
            RunState(
                round=outcome.number,
                data=self.fingerprint,
                edges=self.edges,
                wall_seconds=report.seconds,
                arrays=outcome.arrays,
                strategies=strategies,
                clients=self.engine.clients_state(),
                world=self.world.state_dict() if self.world else {},
                best=self.best.state_dict() if self.best else {},
                settings=dict(self.settings),
                files=dict(self.files),
                bytes_at_work=self.meter.state_dict(),
                lines=self.folder.num_lines,
            )
        )
