"""The picture of who was slow, drawn from ``seconds.jsonl``."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from espalier.app.features.feature import Line
from espalier.app.features.seconds.reports import Totals, totals_of
from espalier.app.ground.pictures import BLUE, GREY, ORANGE, save_plot, shortened
from espalier.app.meters.seconds import Seconds

MOST_NAMES = 12  # under one axis, upright
MOST_BARS = 500  # more are one outline: bars take a millisecond each


def draw_seconds(folder: Path, title: str, lines: Sequence[Line]) -> list[Path]:
    """Write ``seconds.png``: mean seconds of an edge round, of each client and, where there are several, each edge.

    Parameters
    ----------
    folder : Path
        Where to.
    title : str
        Names the run.
    lines : Sequence[dict]
        Lines of rounds, those of ``seconds.jsonl`` among them; without these nothing is drawn.
    """
    totals = totals_of(lines)
    if not totals.clients:
        return []
    columns = 2 if len(totals.edges) > 1 else 1
    path, width = folder / "seconds.png", 6.5 * columns
    return [save_plot(path, title, _draw, totals, width=width, height=5.6, rows=2, columns=columns)]


def _draw(axes: Sequence[Axes], totals: Totals) -> None:
    columns = len(axes) // 2
    _draw_units(axes[0], axes[columns], "client", {str(client): own for client, own in totals.clients.items()})
    if columns > 1:
        _draw_units(axes[1], axes[3], "edge", totals.edges)
    axes[0].legend(frameon=False, fontsize=8, ncols=2, loc="lower right", bbox_to_anchor=(1, 1))


def _draw_units(own: Axes, waits: Axes, what: str, units: Mapping[str, Seconds]) -> None:
    """Draw what units took themselves, and below for how long they waited for others, which may be far more."""
    means, positions = [seconds.mean for seconds in units.values()], np.arange(len(units))
    training, transfer = (np.array([getattr(one, part) for one in means]) for part in ("training", "transfer"))
    _bars(own, positions, np.zeros(len(units)), training, BLUE, "training")
    _bars(own, positions, training, training + transfer, ORANGE, "transfer")
    _bars(waits, positions, np.zeros(len(units)), np.array([one.waiting for one in means]), GREY, "waiting")
    own.set_ylabel("seconds of an edge round")
    slowest = max(units, key=lambda name: units[name].mean.own)
    named = f"{what} {slowest}" if slowest.isdecimal() else shortened(slowest)
    own.set_title(f"slowest: {named}, {units[slowest].mean.own:.3g} s", loc="left", fontsize=8)
    waits.set(xlabel=what, ylabel="seconds waiting")
    names = list(map(shortened, units))
    for ax in (own, waits):
        ax.set_ylim(bottom=0)
        ax.margins(x=0.01)
        if len(names) <= MOST_NAMES:
            ax.set_xticks(positions, names, rotation=0 if sum(map(len, names)) <= 40 else 90)
        else:
            ax.xaxis.set_major_locator(MaxNLocator(15, integer=True))
            ax.xaxis.set_major_formatter(lambda x, _: names[int(x)] if 0 <= x < len(names) else "")
    if what == "edge" and len(names) > MOST_NAMES:
        for ax in (own, waits):
            ax.tick_params(axis="x", rotation=90)


def _bars(ax: Axes, positions: np.ndarray, below: np.ndarray, above: np.ndarray, color: str, label: str) -> None:
    if len(positions) <= MOST_BARS:
        ax.bar(positions, above - below, bottom=below, color=color, width=0.8, label=label)
    else:
        ax.fill_between(positions, below, above, step="mid", color=color, lw=0, label=label)
