"""Who gets the settings and figures of a run, to send them elsewhere: trackers by name, and a user's own."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from logging import getLogger
from pathlib import Path
from typing import Any, Protocol

from espalier.app.ground.errors import FAULTS, UserError, bad_value
from espalier.app.ground.object_spec import ObjectSpec, error_line
from espalier.app.ground.registered import load_built_in
from espalier.app.settings.tracker_kinds import TRACKERS, TrackerKind, Trackers

logger = getLogger("espalier")


class Tracker(Protocol):
    """What ``report.tracker = "package.module:NAME(argument=value)"`` names a maker of.

    It may also have ``run_begins(settings, folder)``, ``edges_over(number, lines)`` with a line of each edge before
    each `round_over`, ``run_over(summary)``, and ``close()``, which is called last, whatever has ended the run.
    """

    def round_over(self, number: int, line: Mapping[str, Any]) -> None:
        """Notice a global round, counted from 1, and its global line of ``metrics.jsonl``."""


class Tracking:
    """A tracker whose failures end no run; the first one is logged.

    Parameters
    ----------
    tracker : Tracker
        Gets the settings, the figures of rounds and the final ones, each where it has a method for it.
    text : str
        What names it.
    """

    def __init__(self, tracker: Tracker, text: str) -> None:
        self.tracker = tracker
        self._text = text
        self._has_failed = False

    def run_begins(self, settings: Mapping[str, Any], folder: Path) -> None:
        """Tell it all settings by key, and the results folder, before a run trains or goes on."""
        self._tell("at the start", "run_begins", settings, folder)

    def edges_over(self, number: int, lines: Sequence[Mapping[str, Any]]) -> None:
        """Tell it the lines of a round's edges."""
        self._tell(f"in round {number}", "edges_over", number, deepcopy(lines))

    def round_over(self, number: int, line: Mapping[str, Any]) -> None:
        """Tell it the global line of a round."""
        self._tell(f"in round {number}", "round_over", number, deepcopy(line))

    def run_over(self, summary: Mapping[str, Any]) -> None:
        """Tell it what is in ``summary.json``, when all is written."""
        self._tell("at the end", "run_over", summary)

    def close(self) -> None:
        """Let it end what it has begun."""
        self._tell("at the end", "close")

    def _tell(self, when: str, method: str, *about: Any) -> None:
        try:
            if own := getattr(self.tracker, method, None):
                own(*about)
        except FAULTS as error:
            if not self._has_failed:
                what = "report.tracker = %r failed %s, the run goes on: %s"
                logger.warning(what, self._text, when, error_line(error))
            self._has_failed = True


def load_trackers(trackers: Trackers) -> list[Tracking]:
    """Return new trackers; the run goes on where one fails.

    Raises
    ------
    UserError
        If one can't be imported or made, or is none.
    """
    return [_loaded(spec, TRACKERS.get(spec.name) if not spec.module else None) for spec in trackers.specs]


def _loaded(spec: ObjectSpec, kind: TrackerKind | None) -> Tracking:
    tracker = spec.call(_maker_of(spec, kind) if kind else spec.load())
    try:
        is_tracker = callable(getattr(tracker, "round_over", None))
    except FAULTS as error:
        raise bad_value(spec.key, spec.text, f"one that does not fail ({error_line(error)})") from None
    if not is_tracker:
        raise bad_value(spec.key, spec.text, "what makes an object with a method round_over(number, line)")
    return Tracking(tracker, spec.text)


def _maker_of(spec: ObjectSpec, kind: TrackerKind) -> Any:
    """Return what makes a tracker of the app's; UserError if its package is not installed, or can't be imported."""
    try:
        return load_built_in(kind.maker, spec.key, spec.text, kind.requires, f"'espalier-fl[{kind.name}]'")
    except UserError:
        raise
    except FAULTS as error:
        raise bad_value(spec.key, spec.text, f"one whose package can be imported ({error_line(error)})") from None
