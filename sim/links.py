"""Clients that talk to any base station, not only to the one around which they were drawn."""

from dataclasses import dataclass, field, fields

import numpy as np

from espalier.sim.radio import mean_path_loss_db
from espalier.sim.world import World


@dataclass(frozen=True, eq=False)
class LinkedWorld(World):
    """A world whose clients are in other cells than those they were drawn in, where they were on the map.

    Parameters
    ----------
    drawn : World
        The world as drawn. Its links are this world's where a client is in its cell of then.
    """

    drawn: World = field(kw_only=True)

    def gains(self, edge_round: int) -> np.ndarray:
        """Return the gains of the links to the clients' base stations."""
        return link_gains(self.drawn, edge_round)[np.arange(len(self.devices)), self.cells.cell]


def linked(world: World, cell: np.ndarray) -> LinkedWorld:
    """Return the world with its clients in other cells, ``int64 (U,)``; they must not walk."""
    own = {of.name: getattr(world, of.name) for of in fields(World)}
    return LinkedWorld(**{**own, "cells": world.cells.seen_from(cell)}, drawn=world)


def link_gains(world: World, edge_round: int) -> np.ndarray:
    """Return the true gains of the links of `U` clients to all `B` base stations in an edge round, ``(U, B)``.

    A link to a client's own base station has the gain of `World.gains`; line of sight and shadowing of every other one
    are drawn for it alone.
    """
    gains = np.empty((len(world.devices), len(world.cells.station_x_metres)))
    own = world.gains(edge_round)
    for station in range(gains.shape[1]):
        other = world.drawn_gains(edge_round, _distance_metres(world, station), station)
        gains[:, station] = np.where(world.cells.cell == station, own, other)
    return gains


def lasting_gains(world: World) -> np.ndarray:
    """Return what lasts of the links' gains, ``(U, B)``: where they are redrawn in every edge round, their mean in dB.

    Elsewhere the gains themselves.
    """
    if not world.redraw:
        return link_gains(world, 1)
    distances = [_distance_metres(world, station) for station in range(len(world.cells.station_x_metres))]
    return np.stack([10 ** (-mean_path_loss_db(own, world.radio) / 10) for own in distances], axis=1)


def _distance_metres(world: World, station: int) -> np.ndarray:
    return world.cells.seen_from(np.full_like(world.cells.cell, station)).distance_metres
