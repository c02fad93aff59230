"""The global rounds of a run, and those who watch them."""

import time
from collections.abc import Sequence
from logging import getLogger

from flwr.app import ArrayRecord

from espalier.app.engines.engine import Engine
from espalier.app.ground.memory import keep_memory
from espalier.app.reports.observers import RoundObserver, RoundReport
from espalier.app.reports.progress import BarProgress, LogProgress
from espalier.app.reports.run_state import RunState
from espalier.app.run.resume import until_all_have_begun
from espalier.strategies import Hierarchical

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
            if report.stopped:
                logger.info("the run ends after round %d by %s", outcome.number, report.stopped)
                break
    finally:
        progress.end()
    return arrays
