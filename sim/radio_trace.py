"""A radio trace: where clients are, or the gains of their links, edge round by edge round, as a CSV file."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from hashlib import sha256
from pathlib import Path

import numpy as np

from espalier.sim.cells import Cells
from espalier.sim.csv_lines import csv_lines
from espalier.sim.world import World

ROUND, CELL, CLIENT = "edge_round", "cell", "client"
POSITION = ("x_metres", "y_metres")
GAIN = "gain"
COLUMNS = (ROUND, CELL, CLIENT, *POSITION, GAIN)
COLUMNS_ALLOWED = f"{CELL},{CLIENT}, with {','.join(POSITION)} or {GAIN} or both, and {ROUND} where they change"
FARTHEST_METRES = 1e6
MOST_ROUNDS = 10**9


@dataclass(frozen=True, eq=False)
class RadioTrace:
    """Cells, places and gains of `U` clients in `R` edge rounds; those of the last hold after it.

    Parameters
    ----------
    cell : np.ndarray
        ``int (R, U)``: the cell whose base station a client talks to.
    x_metres, y_metres : np.ndarray, optional
        ``(R, U)``: where the client is as seen from that base station. None: not said.
    gain : np.ndarray, optional
        ``(R, U)``: true linear power gains. None: not said, they are drawn.
    """

    cell: np.ndarray
    x_metres: np.ndarray | None
    y_metres: np.ndarray | None
    gain: np.ndarray | None

    def in_order(self, clients: np.ndarray) -> "RadioTrace":
        """Return the trace of these clients, in this order."""
        said = {name: array[:, clients] for name, array in vars(self).items() if array is not None}
        return replace(self, **said)

    def cells_in(self, edge_round: int, drawn: Cells) -> Cells:
        """Return where the clients are in an edge round, from 1 on; as drawn where the trace does not say."""
        row = self._row(edge_round)
        cells = replace(drawn, cell=self.cell[row])
        if self.x_metres is None or self.y_metres is None:
            return cells
        return replace(cells, offset_x_metres=self.x_metres[row], offset_y_metres=self.y_metres[row])

    def gains_in(self, edge_round: int) -> np.ndarray | None:
        """Return the gains in an edge round, from 1 on; None where the trace does not say."""
        return None if self.gain is None else self.gain[self._row(edge_round)]

    def digest(self, num_rounds: int) -> str:
        """Return a hash of its first edge rounds."""
        arrays = [array[:num_rounds] for array in vars(self).values() if array is not None]
        return sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()

    def _row(self, edge_round: int) -> int:
        return min(max(edge_round, 1), len(self.cell)) - 1


@dataclass(frozen=True, eq=False)
class TracedWorld(World):
    """A world whose places, or gains, are a trace's; devices, planning error and what the trace lacks are drawn.

    Parameters
    ----------
    trace : RadioTrace
        Of the same clients.
    """

    trace: RadioTrace = field(kw_only=True)

    def cells_in(self, edge_round: int) -> Cells:
        """Return where the clients are in an edge round, counted from 1; in round 0 as in the first."""
        return self.trace.cells_in(edge_round, self.cells)

    def gains(self, edge_round: int) -> np.ndarray:
        """Return the links' true gains: the trace's, or those drawn for its places."""
        gains = self.trace.gains_in(edge_round)
        return super().gains(edge_round) if gains is None else gains


def traced(world: World, trace: RadioTrace) -> TracedWorld:
    """Return the world with the trace's places and gains, in the order of the world's clients."""
    drawn = {of.name: getattr(world, of.name) for of in fields(World)}
    return TracedWorld(**{**drawn, "cells": trace.cells_in(1, world.cells), "walk": None}, trace=trace)


def trace_lines(world: World, place: np.ndarray, num_rounds: int) -> Iterator[str]:
    """Yield the lines of a world's trace: cells, places and true gains, from which the same world can be read.

    Parameters
    ----------
    world : World
        Drawn or traced.
    place : np.ndarray
        ``(U,)``: the place of each client in the world, by client number.
    num_rounds : int
        Edge rounds to write, from the first on.
    """
    yield ",".join(COLUMNS) + "\n"
    for edge_round in range(1, num_rounds + 1):
        cells, gains = world.cells_in(edge_round), world.gains(edge_round)
        columns = (cells.cell, cells.offset_x_metres, cells.offset_y_metres, gains)
        rows = zip(*(column[place].tolist() for column in columns), strict=True)
        # A float as Python writes it is read back to the bit.
        yield from (f"{edge_round},{cell},{i},{x!r},{y!r},{gain!r}\n" for i, (cell, x, y, gain) in enumerate(rows))


def read_radio_trace(
    path: Path,
    *,
    num_clients: int,
    num_cells: int,
    num_rounds: int,
    first_cells: Sequence[int] | None = None,
    may_move: bool = True,
) -> RadioTrace:
    """Read a trace: a CSV file with a line for each client in each edge round, in any order.

    Its columns are ``cell``, ``client``, then ``x_metres`` and ``y_metres``, or ``gain``, or all three, and
    ``edge_round``; without the last, each client has one line, for all edge rounds.

    Parameters
    ----------
    path : Path
        The file.
    num_clients, num_cells : int
        Clients are 0 to ``num_clients - 1``, each with a line, and cells 0 to ``num_cells - 1``.
    num_rounds : int
        Edge rounds, counted from 1, that there must be at least.
    first_cells : Sequence[int], optional (default: None)
        The cells in which the clients must begin, by client. None: any.
    may_move : bool (default: True)
        False: clients must stay in these cells.

    Raises
    ------
    ValueError
        If it is not such a file; the message has the line.
    OSError
        If it can't be read.
    """
    columns, rows = csv_lines(path)
    _check_columns(f"{path}, line 1", columns)
    bounds = {ROUND: (1, MOST_ROUNDS), CELL: (0, num_cells - 1), CLIENT: (0, num_clients - 1)}
    found: dict[tuple[int, int], dict[str, float]] = {}
    for where, words in rows:
        row = _numbers(where, columns, words, bounds)
        edge_round, client, cell = (int(row.get(name, 1)) for name in (ROUND, CLIENT, CELL))
        if first_cells and (edge_round == 1 or not may_move) and cell != first_cells[client]:
            raise ValueError(f"{where}: cell is {cell}: allowed is {first_cells[client]}, that of client {client}")
        if found.setdefault((edge_round, client), row) is not row:
            raise ValueError(f"{where}: client {client} has a line before it{_in_round(columns, edge_round)}")
    num_found = max((edge_round for edge_round, _ in found), default=1)
    if ROUND in columns and num_found < num_rounds:
        raise ValueError(f"{path}: its last {ROUND} is {num_found}: the run has {num_rounds}")
    keys = [(r, c) for r in range(1, min(num_found, len(found) or 1) + 1) for c in range(num_clients)]
    if missing := next((key for key in keys if key not in found), None):
        raise ValueError(f"{path}: client {missing[1]} has no line{_in_round(columns, missing[0])}")

    def table(name: str) -> np.ndarray | None:
        values = [found[key][name] for key in keys] if name in columns else None
        return None if values is None else np.array(values).reshape(-1, num_clients)

    cells = np.array([int(found[key][CELL]) for key in keys]).reshape(-1, num_clients)
    return RadioTrace(cells, *map(table, (*POSITION, GAIN)))


def _check_columns(where: str, columns: Sequence[str]) -> None:
    said = [name for name in (*POSITION, GAIN) if name in columns]
    is_known = len(set(columns)) == len(columns) and {CELL, CLIENT} <= set(columns) <= set(COLUMNS)
    if not (is_known and said in ([*POSITION], [GAIN], [*POSITION, GAIN])):
        raise ValueError(f"{where}: its columns are {','.join(columns)!r}: allowed are {COLUMNS_ALLOWED}")


def _numbers(
    where: str, columns: Sequence[str], words: Sequence[str], bounds: Mapping[str, tuple[int, int]]
) -> dict[str, float]:
    """Return the numbers of a line, by column: whole ones within bounds, and others as far as they can be."""
    if len(words) != len(columns):
        raise ValueError(f"{where}: {len(words)} values: allowed are {len(columns)}, {','.join(columns)}")
    found: dict[str, float] = {}
    for name, word in zip(columns, words, strict=True):
        try:
            found[name] = value = int(word) if name in bounds else float(word)
        except ValueError:
            value = np.nan
        if name in bounds:
            low, high = bounds[name]
            is_allowed, allowed = low <= value <= high, f"a whole number from {low} to {high}"
        elif name == GAIN:
            is_allowed, allowed = 0 < value < np.inf, "a finite number > 0"
        else:
            is_allowed, allowed = abs(value) <= FARTHEST_METRES, f"a number of at most {FARTHEST_METRES:g} either way"
        if not is_allowed:
            raise ValueError(f"{where}: {name} is {word.strip()!r}: allowed is {allowed}")
    return found


def _in_round(columns: Sequence[str], edge_round: int) -> str:
    return f" in {ROUND} {edge_round}" if ROUND in columns else ""
