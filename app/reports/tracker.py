"""A user's own object that gets the settings and figures of a run, to send them elsewhere."""

from collections.abc import Mapping
from copy import deepcopy
from logging import getLogger
from pathlib import Path
from typing import Any, Protocol

from espalier.app.ground.errors import FAULTS, bad_value
from espalier.app.ground.object_spec import ObjectSpec, error_line, parse_object

logger = getLogger("espalier")
FORM = "package.module:NAME or package.module:NAME(argument=value, ...) of your own"


class Tracker(Protocol):
    """What ``report.tracker = "package.module:NAME(argument=value)"`` names a maker of.

    It may also have ``run_begins(settings, folder)`` and ``run_over(summary)``.
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

    def round_over(self, number: int, line: Mapping[str, Any]) -> None:
        """Tell it the global line of a round."""
        self._tell(f"in round {number}", "round_over", number, deepcopy(line))

    def run_over(self, summary: Mapping[str, Any]) -> None:
        """Tell it what is in ``summary.json``, when all is written."""
        self._tell("at the end", "run_over", summary)

    def _tell(self, when: str, method: str, *about: Any) -> None:
        try:
            if own := getattr(self.tracker, method, None):
                own(*about)
        except FAULTS as error:
            if not self._has_failed:
                what = "report.tracker = %r failed %s, the run goes on: %s"
                logger.warning(what, self._text, when, error_line(error))
            self._has_failed = True


def load_tracker(text: str) -> Tracking | None:
    """Return a new tracker, None for an empty text; the run goes on where it fails.

    Raises
    ------
    UserError
        If it can't be imported or made, or is none.
    """
    if not text:
        return None
    try:
        module, name, parameters = parse_object(text)
    except ValueError:
        raise bad_value("report.tracker", text, FORM) from None
    if not module:
        raise bad_value("report.tracker", text, FORM)
    spec = ObjectSpec("report.tracker", text, module, name, parameters)
    tracker = spec.call(spec.load())
    try:
        is_tracker = callable(getattr(tracker, "round_over", None))
    except FAULTS as error:
        raise bad_value("report.tracker", text, f"one that does not fail ({error_line(error)})") from None
    if not is_tracker:
        raise bad_value("report.tracker", text, "what makes an object with a method round_over(number, line)")
    return Tracking(tracker, text)
