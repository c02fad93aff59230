"""How a run ends that can't go on: in one line, which says where it can."""

import os
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from errno import EDQUOT, EFBIG, EIO, ENOSPC
from pathlib import Path

from flwr.serverapp.strategy import Strategy

from espalier.app.algorithms.algorithm import Algorithm
from espalier.app.ground.errors import Interrupted, UserError, shown
from espalier.app.ground.object_spec import error_line, last_line_in
from espalier.app.ground.strategy_spec import StrategySpec
from espalier.app.run.resume import UnfitStateError
from espalier.clients.shared.local_round import BadRuleError
from espalier.sim.simulated_grid import GridLost
from espalier.strategies import strategy_edge
from espalier.strategies.edge_half import BadReturnError
from espalier.strategies.hierarchical import AskedTwiceError


@contextmanager
def interrupted_in(folder: Path) -> Iterator[None]:
    """Say of an interrupt where the run can go on, also where a library made another error of it on its way."""
    try:
        yield
    except BaseException as error:
        if any(isinstance(one, KeyboardInterrupt) for one in _chain_of(error)):
            raise Interrupted(folder) from None
        raise


def _chain_of(error: BaseException) -> list[BaseException]:
    """Return an error and those that came before it, as a traceback shows them."""
    chain, left = list[BaseException](), error
    while not any(left is one for one in chain):  # a user's error may be its own cause
        chain.append(left)
        left = left.__cause__ or (None if left.__suppress_context__ else left.__context__) or left
    return chain


@contextmanager
def lost_grid_as_user_error(folder: Path) -> Iterator[None]:
    """Make a UserError of the end of all workers."""
    try:
        yield
    except GridLost as error:
        go_on = f"; to go on after the last whole round, set resume = {str(folder)!r}" if folder.exists() else ""
        raise UserError(f"{error}{go_on}") from None


@contextmanager
def own_code_as_user_error(specs: Sequence[StrategySpec], algorithm: Algorithm, folder: Path) -> Iterator[None]:
    """Make a UserError of what a strategy or algorithm of the user's own raises, with the line of their file."""
    try:
        yield
    except (UserError, GridLost, KeyboardInterrupt):
        raise
    except BaseException as error:  # all of it is foreign code
        cause = error.__cause__ if isinstance(error, UnfitStateError) and error.__cause__ else error
        said = error_line(error) if cause is error else str(error)
        if blamed := _strategies_to_blame(cause, [spec for spec in specs if spec.module]):
            what = " or ".join(f"{spec.key} = {shown(spec.text)}" for spec in blamed)
            allowed, places = "a strategy that does not fail", {*blamed.values()}
        elif (place := last_line_in(algorithm.files, traceback.extract_tb(cause.__traceback__))) or (
            algorithm.written and isinstance(cause, (BadReturnError, BadRuleError))
        ):
            what, allowed, places = f"algorithm = {shown(algorithm.text)}", "one that does not fail", {place}
        elif isinstance(error, Exception):
            raise
        else:
            raise ended_program(error) from error
        reason = ", ".join([said, *filter(None, places)])
        go_on = f"to go on after the last whole round once it is mended, set resume = {str(folder)!r}"
        raise UserError(f"{what}: allowed is {allowed} ({reason}); {go_on}") from error


@contextmanager
def ended_program_as_user_error() -> Iterator[None]:
    """Make a UserError of what ends the program from within a run, and is no error and no interrupt."""
    try:
        yield
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise ended_program(error) from error


def ended_program(error: BaseException) -> UserError:
    """Return the error for code that ends the program, with its place."""
    *_, frame = traceback.extract_tb(error.__traceback__)
    allowed = "code that returns, or raises an Exception"
    return UserError(f"{frame.filename}:{frame.lineno}: ended the program ({error_line(error)}); allowed is {allowed}")


def _strategies_to_blame(error: BaseException, specs: Sequence[StrategySpec]) -> dict[StrategySpec, str]:
    """Return the strategies that an error came from, with the last line of their files where it has one there."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    callers = [place for place, frame in enumerate(frames) if frame.f_code.co_filename == strategy_edge.__file__]
    called = frames[callers[-1] + 1 :] if callers else []
    lines = traceback.extract_tb(error.__traceback__)[len(frames) - len(called) :]
    for spec in specs:
        if place := last_line_in(spec.files, lines):
            return {spec: place}
    asked: Strategy | None = None
    if isinstance(error, AskedTwiceError):
        asked = error.strategy
    elif callers and (not called or called[0].f_globals["__name__"].startswith("flwr.")):
        # A method that can't even be called, whose return is no such thing, or that is Flower's has no line there.
        asking = [frames[place].f_locals.get("self") for place in reversed(callers)]
        asked = next((edge.strategy for edge in asking if isinstance(edge, strategy_edge.StrategyEdge)), None)
    return {spec: "" for spec in specs if type(spec.build({})) is type(asked)}


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
