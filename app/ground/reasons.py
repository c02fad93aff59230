"""Why something is not done, or has no use: tables of what may hold, and what is said where it does."""

from collections.abc import Iterable, Iterator


def first_reason(*rows: tuple[object, str]) -> str:
    """Return the text of the first row whose other half is true; nothing where none is."""
    return next((why for holds, why in rows if holds), "")


def unused(*rows: tuple[object, Iterable[str], str]) -> Iterator[tuple[Iterable[str], str]]:
    """Yield the keys, and why a run has no use for them, of each row that begins with something true."""
    return ((keys, why) for holds, keys, why in rows if holds)
