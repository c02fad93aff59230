"""Learning curves as figures for a paper: one column wide, as PDF and PNG."""

import re
from collections.abc import Sequence
from math import ceil, floor, log10
from pathlib import Path
from textwrap import wrap
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FixedLocator, MaxNLocator
from matplotlib.transforms import offset_copy

from espalier.app.comparison.curves import OWN, Axis, Curve
from espalier.app.comparison.groups import Group
from espalier.app.comparison.looks import Look
from espalier.app.comparison.spread import Spread
from espalier.app.ground.fields import POOL
from espalier.app.ground.pictures import GREY, write_picture
from espalier.app.ground.pictures import STYLE as PICTURES
from espalier.app.settings.sections import VIDEO_CACHING
from espalier.app.tasks.schemes import in_words

WIDTH_INCHES, HEIGHT_INCHES = 3.5, 2.3
ROW_INCHES = 0.14  # of text
CHARACTERS = 58  # of the title's size that a column takes at most
TITLE_LINES = 2  # that the height has room for
MARGIN = 0.02  # right of the title, as a share of the width
END_MARKERS = dict(zip(OWN.values(), ("*", "h"), strict=True))
END_POINTS = 9  # between the end of curves and such a marker, and from one to the next
HIDES = 20  # times as long: a curve that is a vertical line beside the other
STYLE: Any = PICTURES | {  # for rc_context, which lists all names there are in its type
    "font.size": 8,
    "axes.titlesize": 8,
    "legend.fontsize": 7,
    "lines.linewidth": 1.2,
    "lines.markersize": 3,
}


def draw_curves(
    folder: Path,
    curves: Sequence[Curve],
    looks: Sequence[Look],
    axis: Axis,
    figure: str,
    title: str,
    spread: Spread,
) -> Path:
    """Write ``FIGURE-over-AXIS.png``, and ``.pdf`` beside it, and return where.

    Parameters
    ----------
    folder : Path
        Where to.
    curves : Sequence[Curve]
        A line each, with a band of the spread over seeds; what clients end with that is their own is a marker of
        another shape, in the curve's colour.
    looks : Sequence[Look]
        Of all settings that are compared.
    axis : Axis
        What they go over.
    figure : str
        What they show.
    title : str
        The setting.
    spread : Spread
        What bands show.
    """
    own = list(dict.fromkeys(words for curve in curves for words in curve.own))
    labels = [curve.group.label for curve in curves if len(curves) > 1] + own
    columns = 2 if max(map(len, labels), default=0) <= 26 else 1
    rows = -(-len(labels) // columns)
    with matplotlib.rc_context(STYLE):
        drawn = Figure(figsize=(WIDTH_INCHES, HEIGHT_INCHES + rows * ROW_INCHES), layout="constrained")
        ax = drawn.subplots()
        for curve in curves:
            _draw(ax, curve, looks[curve.place], curve.group.label if len(curves) > 1 else "", spread)
        ends = [(curve, words) for curve in curves for words in curve.own]
        for number, (curve, words) in enumerate(ends, 1):
            _draw_end(ax, curve, words, looks[curve.place], spread, number * END_POINTS)
        for words in own:
            ax.plot([], [], END_MARKERS[words], color=GREY, ms=7, ls="", label=words)
        of = "whole test pool" if figure.startswith(POOL) else "mean of clients"
        ax.set(xlabel=axis.label, ylabel=f"test {figure.removeprefix(POOL).replace('_', ' ')}, {of}")
        if axis.name == "rounds":
            ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        else:
            if starts := first_steps(curves):
                ax.set_xscale("symlog", linthresh=min(starts))
                ax.xaxis.set_major_locator(FixedLocator([0, *powers_of_ten(min(starts), max(c.x[-1] for c in curves))]))
            else:
                ax.xaxis.set_major_locator(MaxNLocator(5))
            ax.xaxis.set_major_formatter(EngFormatter(axis.unit))
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(axis="y", alpha=0.3)
        if rows:
            drawn.legend(loc="outside lower center", ncols=columns, frameon=False, labelspacing=0.2, borderpad=0.1)
        _set_title(ax, drawn, title)
        name = re.sub(r"[^\w.+-]", "-", figure)  # a metric of a task's own may be called anything
        return write_picture(folder / f"{name}-over-{axis.name}.png", drawn, dpi=300)


def _set_title(ax: Axes, figure: Figure, words: str) -> None:
    """Write a title above all else in lines as long as there is room for, and make room for many of them."""
    figure.draw_without_rendering()  # now it is known where the axes begin
    for characters in range(CHARACTERS, 0, -1):
        lines = wrap(words, characters)
        title = ax.set_title("\n".join(lines), loc="left")
        if title.get_window_extent().x1 <= (1 - MARGIN) * figure.bbox.x1:
            break
    figure.set_figheight(figure.get_figheight() + max(len(lines) - TITLE_LINES, 0) * ROW_INCHES)


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


def _draw(ax: Axes, curve: Curve, look: Look, label: str, spread: Spread) -> None:
    if label.startswith("_"):  # Matplotlib leaves such out of legends
        label = f" {label}"
    mean = np.array([y.mean for y in curve.y])
    wide = np.array([spread.of(y) or 0.0 for y in curve.y])
    ax.fill_between(curve.x, mean - wide, mean + wide, color=look.color, alpha=0.15, lw=0)
    every = max(len(curve.x) // 8, 1)
    at = np.arange(curve.place % every, len(curve.x), every).tolist()  # not all curves' at the same x
    ax.plot(curve.x, mean, color=look.color, ls=look.style, marker=look.marker, markevery=at, label=label)


def _draw_end(ax: Axes, curve: Curve, words: str, look: Look, spread: Spread, points: float) -> None:
    """Draw a marker, so many points to the right of a curve's end, with a line to it."""
    end, x, figure = curve.own[words], curve.x[-1], ax.figure.get_figure(root=True)
    beside = offset_copy(ax.transData, figure, x=points, units="points")
    wide = spread.of(end) or 0.0
    ax.update_datalim([(x, end.mean - wide), (x, end.mean + wide)])  # which it is not by itself, for its transform
    ax.autoscale_view()
    bars: Any = {"yerr": wide, "elinewidth": 0.8, "capsize": 2, "clip_on": False}
    ax.errorbar(x, end.mean, fmt=END_MARKERS[words], ms=7, color=look.color, transform=beside, **bars)
    line = {"arrowstyle": "-", "color": look.color, "ls": look.style, "lw": 0.7, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", (x, end.mean), (x, curve.y[-1].mean), beside, "data", arrowprops=line, annotation_clip=False)


def setting(groups: Sequence[Group], spread: Spread) -> str:
    """Return in words what all runs have in common, how many seeds, and what bands show."""
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
        parts.append(in_words(str(common.get("partition", "")), common))
    counts = sorted({len(group.runs) for group in groups})
    seeds = "-".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    parts.append(f"{seeds} seeds (band: {spread.band})" if counts[-1] > 1 else "1 seed")
    return ", ".join(part for part in parts if part)
