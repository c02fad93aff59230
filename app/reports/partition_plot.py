"""The picture of who has how much of which class."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, LogNorm

from espalier.app.ground.pictures import save_plot, shortened
from espalier.app.reports.partition import ClassCounts, blocks_of

MOST_CLIENTS_NAMED, MOST_CLASSES_NAMED, MOST_EDGES_NAMED = 25, 30, 12
FEWEST = 0.25  # where the colours begin: one example is not white, which is none


def draw_partition(folder: Path, title: str, found: ClassCounts) -> Path:
    """Write ``partition.png``: class by client, with lines between edges; return where it is."""
    clients, classes = len(found.clients), len(found.classes)
    width, height = min(max(3.0 + 0.13 * clients, 6.0), 15.0), min(max(1.6 + 0.2 * classes, 3.0), 8.0)
    return save_plot(folder / "partition.png", title, _draw, found, width=width, height=height)


def _draw(axes: Sequence[Axes], found: ClassCounts) -> None:
    (ax,) = axes
    colors = ListedColormap(colormaps["Blues"](np.linspace(FEWEST, 1, 256))).with_extremes(bad="white")
    counts = np.ma.masked_equal(found.counts.T, 0)
    most = max(int(found.counts.max()), 2)
    # Above the grid, which would show between a few and none.
    image = ax.imshow(counts, aspect="auto", interpolation="nearest", cmap=colors, norm=LogNorm(1, most), zorder=1)
    bar = ax.figure.colorbar(image, ax=ax, label="training examples (white: none)", pad=0.01)
    bar.set_ticks(ticks := sorted({1, *(10**i for i in range(1, 10) if 10**i < most), most}), labels=[*map(str, ticks)])
    bar.minorticks_off()
    _name(ax.set_xticks, [str(client) for client in found.clients], MOST_CLIENTS_NAMED)
    _name(ax.set_yticks, [shortened(name) for name in found.classes], MOST_CLASSES_NAMED)
    ax.set(xlabel="client", ylabel="class")
    blocks = blocks_of(found.edges)
    if len(blocks) < 2:
        return
    for _, first, _ in blocks[1:]:
        ax.axvline(first - 0.5, color="black", lw=1.2, zorder=2)
    every = -(-len(blocks) // MOST_EDGES_NAMED)
    for edge, first, last in blocks[::every]:
        ax.text((first + last - 1) / 2, -0.7, shortened(edge), ha="center", va="bottom", fontsize=8)


def _name(set_ticks: object, names: Sequence[str], most: int) -> None:
    """Name every so many rows or columns, so that no more than `most` are."""
    places = range(0, len(names), -(-len(names) // most))
    set_ticks(places, [names[place] for place in places], fontsize=8)  # type: ignore[operator]
