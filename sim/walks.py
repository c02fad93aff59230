"""Clients that walk over the map, from cell to cell."""

from dataclasses import dataclass, replace

import numpy as np

from espalier.sim.cells import Cells


@dataclass(frozen=True, eq=False)
class Walk:
    """`U` clients that walk straight on, each in a direction of its own, and are reflected where the map ends.

    The map is the smallest rectangle around all cells. Everybody belongs to the nearest base station.

    Parameters
    ----------
    start : Cells
        Where the clients begin.
    direction : np.ndarray
        ``(U,)``: radians.
    """

    start: Cells
    direction: np.ndarray

    def after(self, metres: float) -> Cells:
        """Return where the clients are after so many metres; it depends on these alone."""
        if metres == 0:
            return self.start
        start, radius = self.start, self.start.radius_metres
        stations = start.station_x_metres, start.station_y_metres
        moved = start.x_metres + metres * np.cos(self.direction), start.y_metres + metres * np.sin(self.direction)
        x, y = (
            reflected(values, own.min() - radius, own.max() + radius)
            for values, own in zip(moved, stations, strict=True)
        )
        offset_x, offset_y = (np.subtract.outer(values, own) for values, own in zip((x, y), stations, strict=True))
        cell = np.hypot(offset_x, offset_y).argmin(axis=1)
        everybody = np.arange(len(cell))
        return replace(
            start, cell=cell, offset_x_metres=offset_x[everybody, cell], offset_y_metres=offset_y[everybody, cell]
        )


def draw_walk(start: Cells, seed: int) -> Walk:
    """Draw a direction for each client, uniformly.

    Parameters
    ----------
    start : Cells
        Where the clients begin.
    seed : int
        The only source of chance. Not negative.
    """
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=tuple(b"directions")))
    return Walk(start, 2 * np.pi * rng.random(len(start.cell)))


def reflected(positions: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return positions on a line folded back into an interval, as light between two mirrors."""
    span = high - low
    folded = np.mod(positions - low, 2 * span)
    return np.asarray(low + np.minimum(folded, 2 * span - folded))
