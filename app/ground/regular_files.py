"""Regular files of a folder that may be anybody's: no named pipe makes a process wait, no device fills its memory."""

import os
from collections.abc import Callable
from errno import EFBIG, EINVAL, ELOOP, ENXIO
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO

MOST_BYTES = 2**30  # of a text that is read as a whole


def open_to_read(path: Path) -> BinaryIO:
    """Open a regular file, or one that a link leads to.

    Raises
    ------
    OSError
        If it can't be opened, or is none.
    """
    return _regular(open(path, "rb", opener=_opener(os.O_NONBLOCK)))


def open_to_append(path: Path) -> BinaryIO:
    """Open a regular file behind its end, unbuffered, and make it where it is missing; no link is followed.

    Raises
    ------
    OSError
        If it can't be opened, or is none.
    """
    try:
        file = open(path, "ab", buffering=0, opener=_opener(os.O_NONBLOCK | os.O_NOFOLLOW))  # noqa: SIM115
    except OSError as error:
        if error.errno in (ELOOP, ENXIO):  # a link, or a named pipe that nobody reads
            raise _no_file(path) from None
        raise
    return _regular(file)


def read_text(path: Path, most_bytes: int = MOST_BYTES) -> str:
    """Return the text in a regular file.

    Raises
    ------
    OSError
        If it can't be read, is none, or is larger than `most_bytes`.
    ValueError
        If it is not UTF-8.
    """
    with open_to_read(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > most_bytes:
            raise OSError(EFBIG, f"has {size:,} bytes, of {most_bytes:,} at most", str(path))
        return file.read().decode()  # with a limit it would take memory for that much


def _opener(more: int) -> Callable[[str, int], int]:
    """Return what opens a file with more flags than Python's own."""
    return lambda path, flags: os.open(path, flags | more, 0o666)


def _regular(file: BinaryIO) -> BinaryIO:
    """Return an open file; close it and raise OSError if it is no regular one."""
    if not S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise _no_file(file.name)
    return file


def _no_file(path: Path | str) -> OSError:
    return OSError(EINVAL, "is no file", str(path))
