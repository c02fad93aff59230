"""Names of points on a map, none of which lies on another or on a point."""

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from espalier.app.ground.pictures import GREY

FONT_POINTS = 6
GAP_POINTS = 0.8  # around a name: letters are wider or narrower by a little in each format
FAR_POINTS = (1.5, 6.0, 12.0)  # from the point's edge to the name; a line leads to those that are not near
LINE = {"arrowstyle": "-", "linewidth": 0.4, "color": GREY, "shrinkA": 1.0}
DIRECTIONS = ((1, 1), (1, -1), (-1, 1), (-1, -1), (1, 0), (-1, 0), (0, 1), (0, -1))


def label_points(ax: Axes, names: Sequence[str], places: np.ndarray, others: np.ndarray, *, size: float) -> list[str]:
    """Write names beside points where they have room, and say under the map how many have none.

    Axes must have all else that they show: where things are on the page is asked for here.

    Parameters
    ----------
    ax : Axes
        The map.
    names : Sequence[str]
        One for each point.
    places, others : np.ndarray
        Shape (N, 2) and (M, 2): the points with names, and markers that names must not lie on either.
    size : float
        Of the markers, in square points as ``scatter`` takes it.

    Returns
    -------
    list[str]
        The names that have no room.
    """
    figure = ax.figure.get_figure(root=True)
    assert isinstance(figure, Figure)
    figure.draw_without_rendering()
    to_points = 72 / figure.dpi
    centres, radius = ax.transData.transform(np.concatenate([places, others])) * to_points, sqrt(size) / 2
    taken = [np.concatenate([centre - radius, centre + radius]) for centre in centres]
    without = []
    for name, place, centre in zip(names, places, centres, strict=False):
        text = ax.text(place[0], place[1], name, fontsize=FONT_POINTS)
        box = text.get_window_extent()
        text.remove()
        half = np.array([box.width, box.height]) * to_points / 2 + GAP_POINTS
        offsets = [(far, np.array(way) * (radius + far + half)) for far in FAR_POINTS for way in DIRECTIONS]
        free = ((far, offset) for far, offset in offsets if not _overlaps(centre + offset, half, np.array(taken)))
        if (found := next(free, None)) is None:
            without.append(name)
            continue
        far, offset = found
        taken.append(np.concatenate([centre + offset - half, centre + offset + half]))
        style: dict[str, Any] = {"arrowprops": LINE | {"shrinkB": radius}} if far > FAR_POINTS[0] else {}
        written = ax.annotate(name, tuple(place), tuple(offset), textcoords="offset points", **style)
        written.set(fontsize=FONT_POINTS, ha="center", va="center", color="#444444", in_layout=False)
    if without:
        ax.set_xlabel(f"{ax.get_xlabel()} ({len(without)} of {len(names)} clients have no room for their number)")
    return without


def _overlaps(centre: np.ndarray, half: np.ndarray, taken: np.ndarray) -> bool:
    low, high = centre - half, centre + half
    return bool(np.any((taken[:, :2] < high).all(axis=1) & (taken[:, 2:] > low).all(axis=1)))
