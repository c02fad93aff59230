"""How soon runs reached a target: after how many rounds, bytes, seconds and joules."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from espalier.app.comparison.curves import AXES, points_of
from espalier.app.comparison.runs import MEAN, FinishedRun
from espalier.app.ground.errors import bad_value
from espalier.app.ground.fields import POOL
from espalier.clients.messages.train import ACCURACY, LOSS

OPTION = "--target"
WRITTEN = re.compile(r"\s*(?P<figure>[^<>=]*[^<>=\s])\s*(?P<bound>>=|<=|=)(?P<value>[^<>=]+)")
BOUNDS = {ACCURACY: ">=", LOSS: "<="}  # what = stands for
REACHED = "target_reached"


@dataclass(frozen=True)
class Target:
    """A value that a figure, mean over clients or on the whole test pool, is to reach.

    Parameters
    ----------
    figure : str
        Its name in a global line, behind `POOL` for that on the pool.
    value : float
        Reached by the first evaluated round whose figure is this or beyond.
    rises : bool
        Whether beyond is above.
    """

    figure: str
    value: float
    rises: bool

    def is_reached(self, value: float) -> bool:
        """Return whether a figure is the target or beyond."""
        return value >= self.value if self.rises else value <= self.value


def target_of(text: str) -> Target:
    """Return the target in a text such as ``accuracy=0.6``; UserError if it says none."""
    allowed = "accuracy=0.6, loss=1.2, or of any other figure 'NAME>=VALUE' or 'NAME<=VALUE'"
    found = WRITTEN.fullmatch(text)
    bound = found and (found["bound"] if found["bound"] != "=" else BOUNDS.get(found["figure"].removeprefix(POOL)))
    try:
        value = float(found["value"]) if found else math.nan
    except ValueError:
        value = math.nan
    if not found or not bound or not math.isfinite(value):
        raise bad_value(OPTION, text, allowed)
    return Target(found["figure"], value, bound == ">=")


def with_target(runs: Sequence[FinishedRun], target: Target) -> list[FinishedRun]:
    """Return runs whose figures say too whether, and how soon, they reached a target.

    Raises
    ------
    UserError
        If no run has the figure.
    """
    names_of = [set[str]().union(*map(_figures_in, run.lines)) for run in runs]
    if target.figure not in (names := set[str]().union(*names_of)):
        raise bad_value(OPTION, target.figure, f"figures of these runs: {', '.join(sorted(names))}")
    return [
        replace(run, figures=dict(run.figures) | _reached(run, target)) if target.figure in names else run
        for run, names in zip(runs, names_of, strict=True)
    ]


def _reached(run: FinishedRun, target: Target) -> dict[str, float | None]:
    """Return when a run first reached a target, None for never, by what the axis counts; nothing that it counts not."""
    firsts: dict[str, float | None] = {}
    for axis in AXES:
        if len(points := points_of(run, axis, target.figure)):
            firsts[f"target_{axis.name}"] = next((float(x) for _, x, y in points if target.is_reached(y)), None)
    return {REACHED: float(any(first is not None for first in firsts.values())), **firsts} if firsts else {}


def _figures_in(line: Mapping[str, Any]) -> set[str]:
    spreads = {name for name, own in line.items() if isinstance(own, dict) and MEAN in own}
    return spreads | {POOL + name for name in line.get("test", {})}
