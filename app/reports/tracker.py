"""A user's own object that gets the figures of every round, to send them elsewhere."""

from collections.abc import Mapping
from logging import getLogger
from typing import Any, Protocol

from espalier.app.errors import bad_value
from espalier.app.object_spec import ObjectSpec, error_line, parse_object

logger = getLogger("espalier")
FORM = "package.module:NAME or package.module:NAME(argument=value, ...) of your own"


class Tracker(Protocol):
    """What ``report.tracker = "package.module:NAME(argument=value)"`` names a maker of."""

    def round_over(self, number: int, line: Mapping[str, Any]) -> None:
        """Notice a global round, counted from 1, and its global line of ``metrics.jsonl``."""


class Steady:
    """A tracker whose failures end no run; the first one is logged.

    Parameters
    ----------
    tracker : Tracker
        Gets the figures.
    text : str
        What names it.
    """

    def __init__(self, tracker: Tracker, text: str) -> None:
        self.tracker = tracker
        self._text = text
        self._has_failed = False

    def round_over(self, number: int, line: Mapping[str, Any]) -> None:
        """Tell the tracker."""
        try:
            self.tracker.round_over(number, line)
        except Exception as error:
            if not self._has_failed:
                what = "report.tracker = %r failed in round %d, the run goes on: %s"
                logger.warning(what, self._text, number, error_line(error))
            self._has_failed = True


def load_tracker(text: str) -> Tracker | None:
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
    if not callable(getattr(tracker, "round_over", None)):
        raise bad_value("report.tracker", text, "what makes an object with a method round_over(number, line)")
    return Steady(tracker, text)
