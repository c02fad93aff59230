"""Learning curves of runs, and of the runs of a setting together: the mean of their figures in each round."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np

from espalier.app.comparison.groups import Group
from espalier.app.comparison.runs import MEAN, FinishedRun
from espalier.app.comparison.spread import OverSeeds, over_seeds
from espalier.app.ground.fields import OVER_CLIENTS, POOL
from espalier.app.ground.figures import is_figure
from espalier.app.meters.bytes import EVALUATION
from espalier.app.reports.folder import damaged

Line = Mapping[str, Any]
OWN = {"personalised": "fine-tuned heads", "personal": "clients' own models"}


@dataclass(frozen=True)
class Axis:
    """What a curve goes over.

    Parameters
    ----------
    name : str
        For files.
    label : str
        For figures.
    unit : str
        Of its values, an empty text for none.
    progress : Callable[[Sequence[Line]], list[float] | None]
        Gives its value after each global round, from the global lines of a run; None where a run has none.
    """

    name: str
    label: str
    unit: str
    progress: Callable[[Sequence[Line]], list[float] | None]


@dataclass(frozen=True)
class Curve:
    """A figure of the runs of a setting, mean over clients or on the whole test pool.

    Parameters
    ----------
    place : int
        Of the setting among those that are compared.
    group : Group
        The runs.
    x : np.ndarray
        Shape (N,), for each round that all runs have evaluated: mean over the runs of what the axis counts.
    y : Sequence[OverSeeds]
        Of N figures in these rounds.
    own : Mapping[str, OverSeeds] (default: none)
        The figure that clients end with, with what is their own, by what that is in words.
    """

    place: int
    group: Group
    x: np.ndarray
    y: Sequence[OverSeeds]
    own: Mapping[str, OverSeeds] = field(default_factory=dict)


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
    Axis("rounds", "global round", "", _rounds),
    Axis("bytes", "bytes sent, all tiers", "B", _bytes),
    Axis("seconds", "simulated time", "s", _seconds),
    Axis("joules", "energy of all clients", "J", _joules),
)


def curves(groups: Sequence[Group], axis: Axis, figure: str) -> list[Curve]:
    """Return a curve for each setting whose runs all have the figure, and something that the axis counts."""
    found = []
    for place, group in enumerate(groups):
        x, y = together([points_of(run, axis, figure) for run in group.runs])
        if len(x) > 1 and x[-1] > x[0]:
            ends = {words: group.figure(f"{prefix}_{figure}") for prefix, words in OWN.items()}
            found.append(Curve(place, group, x, y, {words: end for words, end in ends.items() if end}))
    return found


def check_curves(run: FinishedRun) -> None:
    """Raise UserError where a run's lines hold something else than its curves are made of: figures, and what grows."""
    names = {name.removesuffix(OVER_CLIENTS) for name in run.figures if name.endswith(OVER_CLIENTS)}
    try:
        spreads = [own for line in run.lines for own in line.values() if isinstance(own, dict) and MEAN in own]
        figures = [*(own[MEAN] for own in spreads), *(v for line in run.lines for v in line.get("test", {}).values())]
        are_figures = all(figure is None or is_figure(figure) for figure in figures)
        are_figures &= all(is_figure(count) for line in run.lines for count in _training_bytes(line))
        for axis in AXES:
            progress = axis.progress(run.lines) or []
            are_figures &= all(map(is_figure, progress)) and sorted([0, *progress]) == [0, *progress]
            for figure in names:
                points_of(run, axis, figure)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        are_figures = False
    if not are_figures:
        raise damaged(run.folder / "metrics.jsonl")


def points_of(run: FinishedRun, axis: Axis, figure: str) -> np.ndarray:
    """Return round, x and y, shape (N, 3), of the evaluated rounds of a run; y is a figure's mean, or the pool's.

    The model that it started with is round 0. There are no points where the axis counts nothing in the run.
    """
    progress = axis.progress(run.lines) if run.lines else None
    if progress is None:
        return np.zeros((0, 3))
    every = [(0, 0.0, run.initial), *zip(_rounds(run.lines), progress, run.lines, strict=True)]
    points = [(number, x, _value(line, figure)) for number, x, line in every]
    return np.array([point for point in points if point[-1] is not None], dtype=float).reshape(-1, 3)


def _value(line: Line, figure: str) -> float | None:
    if figure not in line and figure.startswith(POOL):
        value: float | None = line.get("test", {}).get(figure.removeprefix(POOL))
        return value
    return (line.get(figure) or {}).get(MEAN)


def together(points: Sequence[np.ndarray]) -> tuple[np.ndarray, list[OverSeeds]]:
    """Return means of x, and y over seeds, of several runs, in the rounds that all have."""
    rounds = reduce(np.intersect1d, [own[:, 0] for own in points])
    common = np.array([own[np.isin(own[:, 0], rounds)] for own in points])
    return common[:, :, 1].mean(axis=0), [over_seeds(values) for values in common[:, :, 2].T.tolist()]
