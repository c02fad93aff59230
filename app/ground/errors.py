"""What ends a run that the user has to know of: a mistake of theirs, or an interrupt."""

from pathlib import Path

MOST_SHOWN = 400  # characters of a value
FAULTS = (Exception, SystemExit)  # what foreign code may raise: a library under it may end the program


class UserError(Exception):
    """A mistake of the user's: one line that names the key or file, the value and what is allowed.

    It is shown without a traceback and ends the run with an exit code that is not 0.

    Parameters
    ----------
    text : str
        The line; what can't be printed, a line break in a file's name say, is written as in a Python string.
    """

    def __init__(self, text: str) -> None:
        super().__init__("".join(c if c.isprintable() else repr(c)[1:-1] for c in text))


class Interrupted(KeyboardInterrupt):
    """A run was interrupted by hand; it can go on in its folder.

    Parameters
    ----------
    folder : Path
        The results folder.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self.folder = folder


def bad_value(key: str, value: object, allowed: str) -> UserError:
    """Return the error for a run-config key that holds a value it must not hold.

    Parameters
    ----------
    key : str
        The key of the run config, as the user types it.
    value : object
        The value it was given.
    allowed : str
        What is allowed, in words, e.g. ``"a number > 0"``.
    """
    return UserError(f"{key} = {shown(value)}: allowed is {allowed}")


def shown(value: object) -> str:
    """Return a value as Python writes it; of a very long one the ends."""
    text = repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN // 2]}...{text[-MOST_SHOWN // 2 :]}"
