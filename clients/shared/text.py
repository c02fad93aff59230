"""Text and values that came from elsewhere, as they may stand in a log or a report: one line, printable, short."""

import reprlib
from typing import Any, Final

MOST_CHARACTERS: Final = 500  # of a reason
LONGEST_NAME: Final = 100  # of a metric, a record or an edge

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60


def one_line(text: str, most: int = MOST_CHARACTERS) -> str:
    """Return a text in one line of so many characters at most, with what can't be printed escaped."""
    words = " ".join(text[: 2 * most].split())
    line = "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in words)
    is_cut = len(line) > most or len(text) > 2 * most
    return f"{line[: most - 3]}..." if is_cut else line


def quoted(value: Any) -> str:
    """Return how Python writes a value, shortened."""
    return one_line(_SHORT.repr(value), 200)


def is_name(text: str) -> bool:
    """Return whether a text can be a name: printable, and not too long."""
    return 0 < len(text) <= LONGEST_NAME and text.isprintable()
