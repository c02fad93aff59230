"""Learning curves of runs, and of the runs of a setting together."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from espalier.app.comparison.groups import Group
from espalier.app.comparison.runs import OVER_CLIENTS, FinishedRun
from espalier.app.reports.bytes import EVALUATION
from espalier.app.reports.folder import damaged

Line = Mapping[str, Any]


@dataclass(frozen=True)
class Axis:
    """What a curve goes over.

    Parameters
    ----------
    name : str
        For files.
    label : str
        For figures.
    progress : Callable[[Sequence[Line]], list[float] | None]
        Gives its value after each global round, from the global lines of a run; None where a run has none.
    """

    name: str
    label: str
    progress: Callable[[Sequence[Line]], list[float] | None]


@dataclass(frozen=True)
class Curve:
    """A figure of the runs of a setting, mean over clients.

    Parameters
    ----------
    group : Group
        The runs.
    x, mean, std : np.ndarray
        Shape (N,): over the runs. `std` is that of the population.
    """

    group: Group
    x: np.ndarray
    mean: np.ndarray
    std: np.ndarray


def _rounds(lines: Sequence[Line]) -> list[float]:
    return [line["round"] for line in lines]


def _bytes(lines: Sequence[Line]) -> list[float]:
    each = [sum(_training_bytes(line)) for line in lines]
    return np.cumsum(each, dtype=float).tolist()


def _training_bytes(line: Line) -> Iterator[int]:
    for directions in line["bytes"].values():
        for kinds in directions.values():
            yield from (count for kind, count in kinds.items() if kind != EVALUATION)


def _seconds(lines: Sequence[Line]) -> list[float] | None:
    return [line["simulated_seconds"] for line in lines] if all("simulated_seconds" in line for line in lines) else None


def _joules(lines: Sequence[Line]) -> list[float] | None:
    if not all("energy_joules" in line for line in lines):
        return None
    return [line["energy_joules"]["so_far"] for line in lines]


AXES = (
    Axis("rounds", "global round", _rounds),
    Axis("bytes", "bytes sent, all tiers", _bytes),
    Axis("seconds", "simulated seconds", _seconds),
    Axis("joules", "joules, all clients, to the thriftiest run's end", _joules),
)


def curves(groups: Sequence[Group], axis: Axis, figure: str) -> list[Curve]:
    """Return a curve for each setting whose runs all have the figure, and something that the axis counts."""
    found = []
    for group in groups:
        points = [points_of(run, axis, figure) for run in group.runs]
        if all(len(x) > 1 and x[-1] > x[0] for x, _ in points):
            found.append(Curve(group, *together(points)))
    return found


def check_curves(run: FinishedRun) -> None:
    """Raise UserError where a run's lines hold something else than its curves are made of."""
    names = {name.removesuffix(OVER_CLIENTS) for name in run.figures if name.endswith(OVER_CLIENTS)}
    try:
        for axis in AXES:
            for figure in names:
                points_of(run, axis, figure)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise damaged(run.folder / "metrics.jsonl") from None


def points_of(run: FinishedRun, axis: Axis, figure: str) -> tuple[np.ndarray, np.ndarray]:
    """Return x and y of the evaluated rounds of a run, from the model that it started with; none where it has none."""
    progress = axis.progress(run.lines) if run.lines else None
    if progress is None:
        return np.zeros(0), np.zeros(0)
    both = [(0.0, run.initial), *zip(progress, run.lines, strict=True)]
    points = [(x, (line.get(figure) or {}).get("mean")) for x, line in both]
    known = np.array([(x, y) for x, y in points if y is not None], dtype=float).reshape(-1, 2)
    return known[:, 0], known[:, 1]


def together(points: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return x, and mean and standard deviation of y, of several runs.

    Where they have no common x, as with joules, each is interpolated: at every x of any of them, from where all have
    begun to where the first ends.
    """
    first, last = max(x[0] for x, _ in points), min(x[-1] for x, _ in points)
    every = np.unique(np.concatenate([x for x, _ in points]))
    common = every[(every >= first) & (every <= last)]
    values = np.array([np.interp(common, x, y) for x, y in points])
    return common, values.mean(axis=0), values.std(axis=0)
