"""What `Hierarchical.start` logs: the lines of the `start` of Flower's strategies, with the edges' names."""

import io
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from logging import INFO, LogRecord, getLogger
from typing import Any, TypeVar

import numpy as np
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result

from .exchange import Exchanges, path_of
from .outcomes import EdgeOutcome, Evaluation, Round

logger = getLogger("espalier")
flower_logger = getLogger("flwr")  # where Flower's strategies log
T = TypeVar("T")
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
StopFn = Callable[[int, Result], bool]


def log_start(name: str, num_rounds: int, arrays: ArrayRecord) -> None:
    """Log what is about to run."""
    flower_logger.log(INFO, "Starting %s strategy:", name)
    flower_logger.log(INFO, "\t├── Number of rounds: %d", num_rounds)
    size = sum(len(array.data) for array in arrays.values()) / 1024**2
    flower_logger.log(INFO, "\t├── ArrayRecord (%.2f MB)", size)


def run_and_log(
    rounds: Iterator[Round],
    initial_arrays: ArrayRecord,
    num_rounds: int,
    evaluate_fn: EvaluateFn | None,
    should_stop: StopFn | None,
    as_last: Callable[[Round], Round],
) -> Result:
    """Run global rounds and log them; return Flower's kind of result.

    A metric that is not a finite number is warned of once, with the name of whose it is.

    Parameters
    ----------
    rounds : Iterator[Round]
        The rounds; each is run when it is taken.
    initial_arrays : ArrayRecord
        The global model before them.
    num_rounds : int
        How many they are.
    evaluate_fn : callable, optional
        The server's own evaluation: gets the round (0 before the first) and the global model.
    should_stop : callable, optional
        Gets the round's number and the result so far; where it returns True the round was the last.
    as_last : Callable[[Round], Round]
        Returns such a round with what the last one has.
    """
    result, known, started = Result(arrays=initial_arrays), set[tuple[str, str]](), time.monotonic()

    def evaluate(number: int, line: str) -> None:
        if evaluate_fn is not None:
            metrics = evaluate_fn(number, result.arrays)
            flower_logger.log(INFO, line, metrics)
            if metrics is not None:
                result.evaluate_metrics_serverapp[number] = metrics

    def note(outcome: Round) -> None:
        for phase, metrics, so_far in (
            ("train", outcome.train_metrics, result.train_metrics_clientapp),
            ("evaluate", outcome.evaluate_metrics, result.evaluate_metrics_clientapp),
        ):
            if metrics is not None and outcome.number not in so_far:
                flower_logger.log(INFO, "\t└──> Aggregated MetricRecord (%s): %s", phase, metrics)
                so_far[outcome.number] = metrics
        for who, name, value in _not_finite(outcome):
            if (who, name) not in known:
                known.add((who, name))
                logger.warning("round %d: metric %r of %s is %s", outcome.number, name, who, value)

    evaluate(0, "Initial global evaluation results: %s")
    for number in range(1, num_rounds + 1):
        flower_logger.log(INFO, "")
        flower_logger.log(INFO, "[ROUND %d/%d]", number, num_rounds)
        outcome = next(rounds)
        result.arrays = outcome.arrays
        note(outcome)
        evaluate(number, "\t└──> MetricRecord (global evaluation): %s")
        if should_stop is not None and should_stop(number, result):
            flower_logger.log(INFO, "Stopping early after round %d", number)
            note(as_last(outcome))
            break
    flower_logger.log(INFO, "")
    flower_logger.log(INFO, "Strategy execution finished in %.2fs", time.monotonic() - started)
    flower_logger.log(INFO, "Final results:")
    for line in io.StringIO(str(result)):
        flower_logger.log(INFO, "\t%s", line.rstrip("\n"))
    return result


def labelled(name: str, conversation: Exchanges[T]) -> Exchanges[T]:
    """Pass a conversation on; what Flower's strategies log in it has a name in front."""
    answer = None
    with closing(conversation):
        while True:
            try:
                with _in_front(name):
                    step = conversation.send(answer)
            except StopIteration as stop:
                return stop.value
            answer = yield step


@contextmanager
def _in_front(name: str) -> Iterator[None]:
    def rewrite(record: LogRecord) -> bool:
        record.msg, record.args = f"{name}: {record.getMessage()}", ()
        return True

    flower_logger.addFilter(rewrite)
    try:
        yield
    finally:
        flower_logger.removeFilter(rewrite)


def _not_finite(outcome: Round) -> Iterator[tuple[str, str, Any]]:
    """Return whose metric it is, its name and its value for all metrics that are not finite."""
    of_cloud = [("the cloud", metrics) for metrics in (outcome.train_metrics, outcome.evaluate_metrics) if metrics]
    for who, metrics in [*of_cloud, *_of_edges("", outcome.edges), *_of_evaluations("", outcome.evaluations)]:
        for name, value in metrics.items():
            if not np.isfinite(value).all():
                yield who, name, value


def _of_edges(path: str, edges: Mapping[str, EdgeOutcome]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, edge in edges.items():
        for update in edge.updates:
            yield path_of(path, name), update.metrics or {}
            yield from _of_edges(path_of(path, name), update.edges)


def _of_evaluations(path: str, evaluations: Mapping[str, Evaluation]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, evaluation in evaluations.items():
        yield path_of(path, name), evaluation.metrics or {}
        yield from _of_evaluations(path_of(path, name), evaluation.edges)
