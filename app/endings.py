"""How a run ends that can't go on: in one line, which says where it can."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EDQUOT, EFBIG, EIO, ENOSPC
from pathlib import Path

from espalier.app.errors import Interrupted, UserError
from espalier.sim.in_process_grid import GridLost


@contextmanager
def interrupted_in(folder: Path) -> Iterator[None]:
    """Say of an interrupt where the run can go on."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(folder) from None


@contextmanager
def lost_grid_as_user_error(folder: Path) -> Iterator[None]:
    """Make a UserError of the end of all workers."""
    try:
        yield
    except GridLost as error:
        go_on = f"; to go on after the last whole round, set resume = {str(folder)!r}" if folder.exists() else ""
        raise UserError(f"{error}{go_on}") from None


@contextmanager
def unwritable_as_user_error(folder: Path) -> Iterator[None]:
    """Make a UserError of an error from writing to a folder, as where a disk is full."""
    try:
        yield
    except OSError as error:
        if not _is_about(error, folder):
            raise
        raise UserError(f"{folder}: can't be written ({error}); the rounds that are over are saved") from None


def _is_about(error: OSError, folder: Path) -> bool:
    """Return whether an error came from writing to a folder, not from a strategy, say; a failed write names no file."""
    if error.filename is None:
        return error.errno in (ENOSPC, EDQUOT, EFBIG, EIO)
    return Path(os.fsdecode(error.filename)).absolute().is_relative_to(folder)
