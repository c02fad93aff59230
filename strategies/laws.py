"""Laws that can be tried: what holds, how a breach is found, and what to do about it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from traceback import extract_tb
from typing import Generic, TypeVar

from .replies import one_line

Subject = TypeVar("Subject")
FAULTS = (Exception, SystemExit)  # what foreign code may raise
OURS = Path(__file__).parent.parent


@dataclass(frozen=True)
class Broken:
    """A law that does not hold; as a text it is one line.

    Parameters
    ----------
    law : str
        What should hold.
    seen : str
        What was seen instead.
    advice : str
        What to do.
    """

    law: str
    seen: str
    advice: str

    def __str__(self) -> str:
        return f"{self.law}: {self.seen}; {self.advice}"


@dataclass(frozen=True)
class Law(Generic[Subject]):
    """Something that holds of every edge, say, whoever wrote it.

    Parameters
    ----------
    says : str
        The law.
    seen : Callable[[Subject], str]
        Tries it; returns what breaks it, or an empty string. It may raise whatever foreign code does.
    advice : str
        What to do where it is broken.
    """

    says: str
    seen: Callable[[Subject], str]
    advice: str


def broken_laws(laws: Iterable[Law[Subject]], subject: Subject) -> list[Broken]:
    """Return those of some laws that do not hold, in their order."""
    found = []
    for law in laws:
        try:
            seen = law.seen(subject)
        except FAULTS as error:
            seen = _raised(error)
        if seen:
            found.append(Broken(law.says, " ".join(seen.split()), law.advice))
    return found


def _raised(error: BaseException) -> str:
    """Return what an error says, and the last line that it came through outside of libraries and of this package."""
    text = f"{type(error).__name__}: {one_line(error) if isinstance(error, Exception) else error}"
    for frame in reversed(extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        is_ours = any(path.is_relative_to(OURS / folder) for folder in ("strategies", "clients", "sim", "app"))
        if not is_ours and not {"site-packages", "lib"} & set(path.parts) and path.is_file():
            return f"{text} ({path.name}:{frame.lineno})"
    return text
