"""The global rounds of a run, and those who watch them."""

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from logging import getLogger

import torch
from flwr.app import ArrayRecord

from espalier.app.engines.engine import Engine
from espalier.app.errors import UserError
from espalier.app.memory import keep_memory
from espalier.app.object_spec import error_line
from espalier.app.reports.observers import RoundObserver, RoundReport
from espalier.app.reports.progress import BarProgress, LogProgress
from espalier.app.resources.planner import World
from espalier.app.run_state import RunState
from espalier.sim.in_process_grid import GridLost
from espalier.strategies import Hierarchical, Round

logger = getLogger("espalier")


def train(
    engine: Engine,
    hierarchical: Hierarchical,
    arrays: ArrayRecord,
    num_rounds: int,
    observers: Sequence[RoundObserver],
    progress: BarProgress | LogProgress,
    *,
    timeout_seconds: float | None,
    state: RunState | None = None,
) -> ArrayRecord:
    """Run all global rounds, or those that a resumed run has left, and return the global model.

    Parameters
    ----------
    engine : Engine
        Where the clients are.
    hierarchical : Hierarchical
        The algorithm.
    arrays : ArrayRecord
        The model to start from.
    num_rounds : int
        The last global round.
    observers : Sequence[RoundObserver]
        Told of every round when it is over, in this order.
    progress : BarProgress | LogProgress
        Shows how far it is.
    timeout_seconds : float, optional
        How long an edge waits for replies.
    state : RunState, optional (default: None)
        Of a run that is to go on; the parts that have a state have taken it back, see `take_back`.
    """
    first_round, wall_seconds = 1, 0.0
    if state:
        arrays, first_round, wall_seconds = state.arrays, state.round + 1, state.wall_seconds
        logger.info("resumed after round %d", state.round)
    steps = hierarchical.edge_rounds * len(hierarchical.edges)
    keep_memory()
    progress.begin((first_round - 1) * steps, num_rounds * steps)
    started = time.monotonic() - wall_seconds
    try:
        rounds = hierarchical.rounds(engine.grid, arrays, num_rounds, first_round=first_round, timeout=timeout_seconds)
        for outcome in until_all_have_begun(rounds, hierarchical.edges) if state else rounds:
            arrays = outcome.arrays
            report = RoundReport(outcome, num_rounds, lambda: time.monotonic() - started)
            for observer in observers:
                observer.round_over(report)
            progress.round_over(outcome.number, num_rounds, report.line)
    finally:
        progress.end()
    return arrays


class UnfitStateError(Exception):
    """A saved state that is not one of this run's; the text says why."""


@contextmanager
def unfit_state() -> Iterator[None]:
    """Lay what fails on the state: it is foreign data, which the strategies of a user's own read too."""
    try:
        yield
    except (UserError, GridLost, OSError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise UnfitStateError(error_line(error)) from error


def take_back(state: RunState, hierarchical: Hierarchical, engine: Engine, world: World | None) -> None:
    """Give all who keep a state from round to round theirs, of a run that is to go on.

    Raises
    ------
    UnfitStateError
        If they can't take it.
    """
    with unfit_state():
        hierarchical.load_state_dict(state.strategies)
        if world:
            world.load_state_dict(state.world)
        engine.load_clients_state(state.clients)  # last: edges that are served try what they will get


def until_all_have_begun(rounds: Iterator[Round], edges: Collection[str]) -> Iterator[Round]:
    """Yield rounds; UnfitStateError if one fails before all edges that have taken their state back were in one.

    Arrays of a wrong shape, say, are found out only by the strategy that they belong to, and the cloud may choose an
    edge, or wait for it, in a later round.
    """
    untried = set(edges)
    while True:
        with unfit_state() if untried else nullcontext():
            outcome = next(rounds, None)
        if outcome is None:
            return
        untried -= outcome.edges.keys()
        yield outcome
