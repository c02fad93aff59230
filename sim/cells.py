"""Where the clients are: base stations in a hexagonal layout, and each cell's clients in a disk around its own."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True, eq=False)
class Cells:
    """Positions of `U` clients in `B` cells, the clients in the order of their cells.

    Parameters
    ----------
    cell : np.ndarray
        ``int64 (U,)``: index of each client's cell.
    offset_x_metres, offset_y_metres : np.ndarray
        ``(U,)``: where the client is as seen from its base station.
    station_x_metres, station_y_metres : np.ndarray
        ``(B,)``: where the base stations are.
    radius_metres : float
        Radius of a cell.
    """

    cell: np.ndarray
    offset_x_metres: np.ndarray
    offset_y_metres: np.ndarray
    station_x_metres: np.ndarray
    station_y_metres: np.ndarray
    radius_metres: float

    @property
    def distance_metres(self) -> np.ndarray:
        """The clients' distances to their base stations on the ground, ``(U,)``."""
        return np.hypot(self.offset_x_metres, self.offset_y_metres)

    @property
    def x_metres(self) -> np.ndarray:
        """The clients' positions on the map, ``(U,)``."""
        return self.station_x_metres[self.cell] + self.offset_x_metres

    @property
    def y_metres(self) -> np.ndarray:
        """The clients' positions on the map, ``(U,)``."""
        return self.station_y_metres[self.cell] + self.offset_y_metres

    def seen_from(self, cell: np.ndarray) -> "Cells":
        """Return the clients where they are on the map, in other cells: ``int64 (U,)``."""
        return replace(
            self,
            cell=cell,
            offset_x_metres=self.x_metres - self.station_x_metres[cell],
            offset_y_metres=self.y_metres - self.station_y_metres[cell],
        )


def draw_cells(
    clients_per_cell: Sequence[int], seed: int, *, radius_metres: float = 400.0, min_distance_metres: float = 10.0
) -> Cells:
    """Place every client uniformly in the disk around its base station (RawHFL paper, Section V).

    The base stations' layout matters to maps only, as cells do not interfere: the disks touch and don't overlap.

    Parameters
    ----------
    clients_per_cell : Sequence[int]
        Number of clients of each cell, at least 1.
    seed : int
        The only source of chance. Not negative.
    radius_metres : float (default: 400)
        Radius of the disks.
    min_distance_metres : float (default: 10)
        No client is closer to its base station. The path loss model starts at 10 m.

    Raises
    ------
    ValueError
        If a value is not allowed.
    """
    sizes = np.asarray(clients_per_cell)
    if sizes.ndim != 1 or sizes.dtype.kind not in "iu" or sizes.size == 0 or sizes.min() < 1:
        raise ValueError(f"clients_per_cell = {clients_per_cell}: must be one integer >= 1 for each of 1 or more cells")
    if seed < 0:
        raise ValueError(f"seed = {seed}: must be an integer >= 0")
    if not 0 < radius_metres < np.inf:
        raise ValueError(f"radius_metres = {radius_metres}: must be a finite number > 0")
    if not 0 <= min_distance_metres < radius_metres:
        raise ValueError(f"min_distance_metres = {min_distance_metres}: must be >= 0 and < radius = {radius_metres}")
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=tuple(b"positions")))
    # A row per client, so that more clients in the last cell leave the others where they are.
    share, turn = rng.random((sizes.sum(), 2)).T
    # Equal areas are equally likely, and the area within a distance grows with its square.
    distance = np.sqrt(min_distance_metres**2 + share * (radius_metres**2 - min_distance_metres**2))
    row, column = np.divmod(np.arange(len(sizes)), int(np.ceil(np.sqrt(len(sizes)))))
    return Cells(
        cell=np.repeat(np.arange(len(sizes)), sizes),
        offset_x_metres=distance * np.cos(2 * np.pi * turn),
        offset_y_metres=distance * np.sin(2 * np.pi * turn),
        station_x_metres=radius_metres * (2.0 * column + row % 2),
        station_y_metres=radius_metres * np.sqrt(3) * row,
        radius_metres=radius_metres,
    )
