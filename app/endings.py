"""How a run ends that can't go on: in one line, which says where it can."""

import os
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from errno import EDQUOT, EFBIG, EIO, ENOSPC
from pathlib import Path

from espalier.app.errors import Interrupted, UserError, shown
from espalier.app.object_spec import error_line
from espalier.app.strategy_spec import StrategySpec
from espalier.sim.in_process_grid import GridLost
from espalier.strategies import edges


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
def own_strategy_as_user_error(specs: Sequence[StrategySpec], folder: Path) -> Iterator[None]:
    """Make a UserError of what a strategy of the user's own raises, with the line of their file where it did."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # all of it is foreign code
        if not (blamed := _strategies_to_blame(error, [spec for spec in specs if spec.module])):
            raise
        what = " or ".join(f"{spec.key} = {shown(spec.text)}" for spec, _ in blamed)
        reason = "".join([error_line(error), *(f", {place}" for _, place in blamed if place)])
        go_on = f"to go on after the last whole round once it is mended, set resume = {str(folder)!r}"
        raise UserError(f"{what}: allowed is a strategy that does not fail ({reason}); {go_on}") from error


def _strategies_to_blame(error: Exception, own: Sequence[StrategySpec]) -> list[tuple[StrategySpec, str]]:
    """Return those of the user's own strategies that an error came from, each with the last line of its files."""
    frames = traceback.extract_tb(error.__traceback__)
    for spec in own:
        if lines := [frame for frame in frames if frame.filename in spec.files]:
            return [(spec, f"{Path(lines[-1].filename).name}:{lines[-1].lineno}")]
    # A method that can't even be called leaves no line of its own.
    return [(spec, "") for spec in own] if frames[-1].filename == edges.__file__ else []


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
