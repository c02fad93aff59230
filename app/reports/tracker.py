"""A user's own object that gets the figures of every round, to send them elsewhere."""

from collections.abc import Mapping
from typing import Any, Protocol

from espalier.app.errors import bad_value
from espalier.app.object_spec import ObjectSpec, parse_object

FORM = "package.module:NAME or package.module:NAME(argument=value, ...) of your own"


class Tracker(Protocol):
    """What ``report.tracker = "package.module:NAME(argument=value)"`` names a maker of."""

    def round_over(self, number: int, line: Mapping[str, Any]) -> None:
        """Notice a global round, counted from 1, and its global line of ``metrics.jsonl``."""


def load_tracker(text: str) -> Tracker | None:
    """Return a new tracker, None for an empty text.

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
    return tracker
