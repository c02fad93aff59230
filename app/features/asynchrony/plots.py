"""The picture of a tier that waits for nobody, drawn from ``metrics.jsonl``."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from espalier.app.features.asynchrony.reports import seconds_of, staleness_counts
from espalier.app.features.feature import Line
from espalier.app.ground.figures import figure_names
from espalier.app.ground.pictures import BLUE, ORANGE, number, save_plot


def draw_asynchronous_plot(folder: Path, title: str, lines: Sequence[Line]) -> list[Path]:
    """Write ``async.png``: a figure over seconds, updates by staleness, and idle shares.

    Parameters
    ----------
    folder : Path
        Where to.
    title : str
        Names the run.
    lines : Sequence[dict]
        The lines of ``metrics.jsonl``; nothing is drawn for a run that waits for all.
    """
    rounds = [line for line in lines if "async" in line]
    if not rounds:
        return []
    return [save_plot(folder / "async.png", title, _draw, rounds, width=13.0, columns=3)]


def _draw(axes: Sequence[Axes], rounds: Sequence[Line]) -> None:
    over_time, histogram, idle = axes
    evaluated = [line for line in rounds if line.get("test")]
    name = figure_names(evaluated[-1]["test"] if evaluated else None)[0]
    axis = "simulated seconds" if "simulated_seconds" in rounds[-1] else "seconds"
    seconds = [seconds_of(line) for line in evaluated]
    over_time.plot(seconds, [number(line["test"].get(name)) for line in evaluated], color=BLUE, marker="o", ms=3)
    over_time.set(xlabel=axis, ylabel=f"test {name}, whole test pool")
    counts = staleness_counts(rounds)
    histogram.bar(list(counts), list(counts.values()), color=BLUE, width=0.8)
    histogram.set(xlabel="staleness (aggregations)", ylabel="updates")
    histogram.xaxis.set_major_locator(MaxNLocator(integer=True))
    for unit, color in (("edges", ORANGE), ("clients", BLUE)):
        shares = [(seconds_of(line), line["async"]["idle_share"].get(unit)) for line in rounds]
        if drawn := [(time, share) for time, share in shares if share is not None]:
            idle.plot(*zip(*drawn, strict=True), color=color, drawstyle="steps-pre", label=unit)
    idle.set(xlabel=axis, ylabel="idle share", ylim=(0, 1))
    if idle.lines:
        idle.legend(frameon=False, fontsize=8)
