"""When a run ends before its last global round: what a setting of `Stop` asks for is reached."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.serverapp import Grid

from espalier.app.features.feature import Part
from espalier.app.ground.errors import bad_value
from espalier.app.ground.figures import finite, is_figure
from espalier.app.meters.bytes import ByteMeter, nested
from espalier.app.planning.world import PlannedWorld
from espalier.app.reports.observers import RoundReport, ServerEvaluation
from espalier.app.settings.sections import Stop
from espalier.clients.messages.train import ACCURACY
from espalier.strategies import Hierarchical
from espalier.strategies.outcomes import is_evaluated


@dataclass
class SoFar:
    """What the rounds of a run came to; what it says follows from the global lines alone, so a resumed run knows it.

    Attributes
    ----------
    round : int
        The last one.
    accuracy : float
        Test accuracy of the last round; less than any where it was not evaluated.
    best : float
        The highest so far.
    evaluated_since : int
        Rounds evaluated since that was first reached.
    bytes : int
        Of all rounds, tiers, directions and kinds.
    seconds, joules : float
        Since the run began.
    ends : str
        Why the run ends with the last round, whatever `Stop` says; nothing if it goes on.
    """

    round: int = 0
    accuracy: float = -math.inf
    best: float = -math.inf
    evaluated_since: int = 0
    bytes: int = 0
    seconds: float = 0.0
    joules: float = 0.0
    ends: str = ""

    @classmethod
    def of(cls, lines: Iterable[Mapping[str, Any]]) -> "SoFar":
        """Return what the lines of ``metrics.jsonl`` come to."""
        so_far = cls()
        for line in lines:
            if line["scope"] == "global":
                so_far.add(line)
        return so_far

    def add(self, line: Mapping[str, Any]) -> None:
        """Add a round by its global line."""
        self.round = line["round"]
        self.accuracy = -math.inf
        if "test" in line:
            accuracy = line["test"].get(ACCURACY)
            self.accuracy = accuracy if is_figure(accuracy) else -math.inf
            better = self.accuracy > self.best
            self.best, self.evaluated_since = (self.accuracy, 0) if better else (self.best, self.evaluated_since + 1)
        of_tiers = (directions.values() for directions in line["bytes"].values())
        self.bytes += sum(count for kinds in of_tiers for one in kinds for count in one.values())
        self.seconds = line["wall_seconds"]
        self.ends = line.get("ends", "")
        self.joules = line.get("energy_joules", {}).get("so_far", 0.0)

    def reason(self, stop: Stop) -> str:
        """Return which setting ends the run after these rounds, and by what; nothing if it goes on."""
        reached = {
            "stop.accuracy": (stop.accuracy, self.accuracy, f"test accuracy {self.accuracy:.4f}"),
            "stop.patience": (
                stop.patience,
                self.evaluated_since,
                f"no test accuracy above {self.best:.4f} in {self.evaluated_since} evaluated rounds",
            ),
            "stop.seconds": (stop.seconds, self.seconds, f"{self.seconds:.1f} s"),
            "stop.bytes": (stop.bytes, self.bytes, f"{self.bytes} bytes"),
            "stop.joules": (stop.joules, self.joules, f"{self.joules:.4g} J"),
        }
        found = (f"{key} = {at}: {text}" for key, (at, value, text) in reached.items() if 0 < at <= value)
        return next(found, self.ends)

    def ends_early(self, stop: Stop, num_rounds: int) -> str:
        """Return the `reason`, if the run ends by it before `num_rounds`."""
        return self.reason(stop) if self.round < num_rounds else ""


@dataclass(frozen=True)
class StopRule:
    """Says after which round the run ends, and has that round evaluated as the last one is.

    Parameters
    ----------
    stop : Stop
        The settings.
    hierarchical : Hierarchical
        Evaluates on the clients.
    grid : Grid
        Reaches them.
    timeout_seconds : float, optional
        How long their replies may take.
    meter : ByteMeter
        Counts the bytes of the round.
    world : PlannedWorld, optional
        Counts joules.
    evaluations : Sequence[ServerEvaluation]
        Of the test pool; none where there is no model.
    so_far : SoFar
        Of the rounds before.
    parts : Sequence[Part] (default: none)
        What features put into the run; one may end it, too.
    """

    stop: Stop
    hierarchical: Hierarchical
    grid: Grid
    timeout_seconds: float | None
    meter: ByteMeter
    world: PlannedWorld | None
    evaluations: Sequence[ServerEvaluation]
    so_far: SoFar = field(default_factory=SoFar)
    parts: Sequence[Part] = ()

    def round_over(self, report: RoundReport) -> None:
        """Notice a round; its line is not written yet."""
        line = {
            "round": report.outcome.number,
            "bytes": nested(self.meter.so_far()),
            "wall_seconds": report.wall_seconds(),
            "ends": next(filter(None, (part.ends(report.outcome) for part in self.parts)), ""),
            **({"test": finite(report.test)} if report.test is not None else {}),
            **({"energy_joules": {"so_far": self.world.joules}} if self.world else {}),
        }
        self.so_far.add(line)
        report.stopped = self.so_far.ends_early(self.stop, report.num_rounds)
        if report.stopped:
            self._make_last(report)

    def _make_last(self, report: RoundReport) -> None:
        number = report.outcome.number
        if not is_evaluated(number, report.num_rounds, self.hierarchical.evaluate_every):
            report.outcome = self.hierarchical.evaluated(report.outcome, self.grid, timeout=self.timeout_seconds)
        report.num_rounds = number
        for evaluation in self.evaluations if report.test is None else ():
            evaluation.round_over(report)


def check_stop(stop: Stop, figures: Iterable[str]) -> None:
    """Refuse to wait for an accuracy that a task does not tell; `figures` are those that it does."""
    figures = list(figures)
    for key, value in (("stop.accuracy", stop.accuracy), ("stop.patience", stop.patience)):
        if value and ACCURACY not in figures:
            raise bad_value(key, value, f"0: the task's figures are {', '.join(figures)}, without {ACCURACY}")
