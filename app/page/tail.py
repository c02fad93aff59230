"""A file of lines that a run appends to, read further each time."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from espalier.app.ground.regular_files import open_to_read
from espalier.app.reports.folder import BAD_LINE, MOST_OF_A_LINE, line_of, unreadable


@dataclass
class Tail:
    """Reads the lines of ``metrics.jsonl`` or ``seconds.jsonl`` that are new since it read last.

    Parameters
    ----------
    path : Path
        The file, which may not be there yet.

    Attributes
    ----------
    damaged : bool
        A line is not one that a run writes; what is behind it is not read.
    """

    path: Path
    damaged: bool = field(default=False, init=False)
    _identity: tuple[int, int] | None = field(default=None, init=False)
    _offset: int = field(default=0, init=False)

    def begins_anew(self) -> bool:
        """Return whether the file is another than the one that was read: who resumes a run writes it anew.

        Raises
        ------
        UserError
            If it can't be read.
        """
        before, self._identity, size = self._identity, None, 0
        try:
            status = os.stat(self.path)
            self._identity, size = (status.st_dev, status.st_ino), status.st_size
        except FileNotFoundError:
            pass
        except OSError as error:
            raise unreadable(self.path, error) from None
        return before is not None and (before != self._identity or size < self._offset)

    def rewind(self) -> None:
        """Read from the beginning next."""
        self._offset, self.damaged = 0, False

    def new_lines(self) -> Iterator[dict[str, Any]]:
        """Yield the whole lines behind those that were yielded before.

        Raises
        ------
        UserError
            If the file can't be read.
        """
        if self._identity is None or self.damaged:
            return
        try:
            with open_to_read(self.path) as file:
                file.seek(self._offset)
                while (data := file.readline(MOST_OF_A_LINE)).endswith(b"\n"):
                    try:
                        line = line_of(data)
                    except BAD_LINE:
                        self.damaged = True
                        return
                    self._offset += len(data)
                    yield line
        except FileNotFoundError:
            pass
        except OSError as error:
            raise unreadable(self.path, error) from None
