"""Learning curves as figures for a paper: one column wide, as PDF and PNG."""

import re
from collections.abc import Sequence
from functools import partial
from math import ceil, floor, log10
from pathlib import Path
from textwrap import wrap
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FixedLocator, MaxNLocator

from espalier.app.comparison.curves import Axis, Curve
from espalier.app.comparison.groups import Group
from espalier.app.ground.durable import replace_file
from espalier.app.settings.sections import VIDEO_CACHING

WIDTH_INCHES, HEIGHT_INCHES = 3.5, 2.3
LEGEND_ROW_INCHES = 0.14
CHARACTERS = 58  # of the title's size that a column takes
# Okabe and Ito's colours, which all can tell apart, without the yellow, which is too bright for lines.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES, MARKERS = ("-", "--", ":", "-."), ("o", "s", "^", "D", "v", "P", "X")
HIDES = 20  # times as long: a curve that is a vertical line beside the other
STYLE: Any = {  # for rc_context, which lists all names there are in its type
    "font.size": 8,
    "axes.titlesize": 8,
    "legend.fontsize": 7,
    "pdf.fonttype": 42,  # publishers refuse Type 3
    "lines.linewidth": 1.2,
    "lines.markersize": 3,
}


def draw_curves(folder: Path, curves: Sequence[Curve], axis: Axis, figure: str, title: str) -> list[Path]:
    """Write ``FIGURE-over-AXIS.pdf`` and ``.png`` and return where.

    Parameters
    ----------
    folder : Path
        Where to.
    curves : Sequence[Curve]
        A line each, with a band of one standard deviation over seeds.
    axis : Axis
        What they go over.
    figure : str
        What they show.
    title : str
        The setting.
    """
    columns = 2 if max(len(curve.group.label) for curve in curves) <= 26 else 1
    rows = -(-len(curves) // columns) * (len(curves) > 1)
    with matplotlib.rc_context(STYLE):
        drawn = Figure(figsize=(WIDTH_INCHES, HEIGHT_INCHES + rows * LEGEND_ROW_INCHES), layout="constrained")
        ax = drawn.subplots()
        for curve in curves:
            _draw(ax, curve)
        ax.set(xlabel=axis.label, ylabel=f"test {figure.replace('_', ' ')}, mean of clients")
        if axis.name == "rounds":
            ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        else:
            if starts := first_steps(curves):
                ax.set_xscale("symlog", linthresh=min(starts))
                ax.xaxis.set_major_locator(FixedLocator([0, *powers_of_ten(min(starts), max(c.x[-1] for c in curves))]))
            else:
                ax.xaxis.set_major_locator(MaxNLocator(5))
            ax.xaxis.set_major_formatter(EngFormatter(axis.unit))
        ax.set_title("\n".join(wrap(title, CHARACTERS)), loc="left")
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(axis="y", alpha=0.3)
        if rows:
            drawn.legend(loc="outside lower center", ncols=columns, frameon=False, labelspacing=0.2, borderpad=0.1)
        name = re.sub(r"[^\w.+-]", "-", figure)  # a metric of a task's own may be called anything
        paths = [folder / f"{name}-over-{axis.name}.{ending}" for ending in ("pdf", "png")]
        for path in paths:
            replace_file(path, partial(drawn.savefig, dpi=300, format=path.suffix[1:]))
    return paths


def powers_of_ten(low: float, high: float) -> list[float]:
    """Return those between two numbers, every second or third where there are many."""
    powers = range(ceil(log10(low)), floor(log10(high)) + 1)
    return [10.0**power for power in powers[:: -(-len(powers) // 5) or 1]]


def first_steps(curves: Sequence[Curve]) -> list[float]:
    """Return where curves are first behind 0, if the longest is so much longer than the shortest that it hides it."""
    ends = [curve.x[-1] for curve in curves]
    if max(ends) < HIDES * min(ends):
        return []
    return [float(curve.x[curve.x > 0].min()) for curve in curves]


def _draw(ax: Axes, curve: Curve) -> None:
    color, marker, style = look_of(curve.place)
    ax.fill_between(curve.x, curve.mean - curve.std, curve.mean + curve.std, color=color, alpha=0.15, lw=0)
    every = max(len(curve.x) // 8, 1)
    at = np.arange(curve.place % every, len(curve.x), every).tolist()  # not all curves' at the same x
    ax.plot(curve.x, curve.mean, color=color, ls=style, marker=marker, markevery=at, label=curve.group.label)


def look_of(number: int) -> tuple[str, str, str]:
    """Return colour, marker and line style of a setting; where a colour comes again it has another marker."""
    marker = MARKERS[(number + number // len(COLORS)) % len(MARKERS)]
    return COLORS[number % len(COLORS)], marker, STYLES[number % len(STYLES)]


def setting(groups: Sequence[Group]) -> str:
    """Return in words what all runs have in common, and how many seeds."""
    runs = [run for group in groups for run in group.runs]
    common = {k: v for k, v in runs[0].settings.items() if all(run.settings[k] == v for run in runs)}
    own_tasks = {run.settings["task"] for run in runs}
    parts = [common.get("algorithm"), common.get("task") or (common.get("dataset") if own_tasks == {""} else None)]
    if common.get("model") != "auto":
        parts.append(common.get("model"))
    if "num-clients" in common:
        parts.append(f"{common['num-clients']} clients")
    # Who brings data shares them out too.
    if own_tasks == {""} and all(run.settings["dataset"] != VIDEO_CACHING for run in runs):
        scheme = str(common.get("partition", ""))
        drawn = (
            f"Dir({common['alpha']:g}){scheme.removeprefix('dirichlet').replace('-', ' ')}" if "alpha" in common else ""
        )
        parts.append(drawn if scheme.startswith("dirichlet") else scheme)
    counts = sorted({len(group.runs) for group in groups})
    seeds = "-".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    parts.append(f"{seeds} seeds (band: 1 std)" if counts[-1] > 1 else "1 seed")
    return ", ".join(part for part in parts if part)
