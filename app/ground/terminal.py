"""A terminal, or a file or pipe in its place, that may go away while a run goes on."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from io import TextIOBase
from typing import Any, TextIO, cast


@contextmanager
def lasting_terminal() -> Iterator[None]:
    """Let nothing that is printed inside the block, by whom it may be, raise an error of the file that it goes to.

    Its reader may be gone, its disk full, and somebody's task may close it. What a run computes is in files.
    """
    with open(os.devnull, "w") as nowhere:  # Python has None for a standard stream that was closed before it began
        err = LastingText(sys.stderr or nowhere, lambda error: None)
        out = LastingText(
            sys.stdout or nowhere,
            lambda error: print(f"standard output can't be written any more ({error}); files are", file=err),
        )
        with redirect_stdout(cast("TextIO", out)), redirect_stderr(cast("TextIO", err)):
            try:
                yield
            finally:
                out.flush()  # Python would complain of what it can't write as it ends
                err.flush()


class LastingText(TextIOBase):
    """Writes text to a file for as long as that works, and then nowhere.

    What the file's encoding lacks, such as a path's letters, is written as in a Python string.

    Parameters
    ----------
    file : TextIO
        Where to.
    lost : Callable[[Exception], object]
        Told of the first error.
    """

    def __init__(self, file: TextIO, lost: Callable[[Exception], object]) -> None:
        self._file = file
        self._lost = lost
        self._is_lost = False

    def write(self, text: str) -> int:
        """Write a text."""
        self._attempt(lambda: self._file.write(self._printable(text)))
        return len(text)

    def flush(self) -> None:
        """Bring to the file what was written."""
        self._attempt(self._file.flush)

    def close(self) -> None:
        """Close nothing: others go on to print."""

    def isatty(self) -> bool:
        """Return whether it is a terminal."""
        return not (self._is_lost or self._file.closed) and self._file.isatty()

    def fileno(self) -> int:
        """Return the file's descriptor."""
        return self._file.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The file's encoding."""
        return getattr(self._file, "encoding", None) or "utf-8"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def _printable(self, text: str) -> str:
        return text.encode(self.encoding, "backslashreplace").decode(self.encoding)

    def _attempt(self, do: Callable[[], object]) -> None:
        if self._is_lost:
            return
        try:
            do()
        except (OSError, ValueError) as error:  # the latter of a closed file
            self._is_lost = True
            with suppress(OSError, ValueError):  # else Python fails as it ends, with what is left to be written
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._file.fileno())
            self._lost(error)
