"""Clients that come and go: who is there in an edge round, and who is gone before it answers."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from espalier.sim.csv_lines import csv_lines

COLUMNS = ("client", "from", "to")
MOVES = ("client", "from", "edge")


class AvailabilityModel(Protocol):
    """Says who is there; an answer depends on the client and the edge round alone, not on what was asked before."""

    def is_there(self, client: int, edge_round: int) -> bool:
        """Return whether a client is there when an edge round begins; edge rounds count from 1, over global rounds."""


@dataclass
class Markov:
    """Every client is there or away, a Markov chain of two states with a step per edge round.

    Clients are independent, each with a generator of its own, and begin in the chain's stationary distribution: in
    any edge round a client is there with probability ``back / (leave + back)``. (The channel model of E. N. Gilbert,
    "Capacity of a burst-noise channel", 1960, with clients for its bits.)

    Parameters
    ----------
    seed : int
        All chains follow it.
    leave, back : float
        Probability per edge round that a client that is there leaves, and that one that is away comes back.

    Raises
    ------
    ValueError
        If a probability is not within 0 and 1, or `back` is 0: then everybody who may leave is away for good.
    """

    seed: int
    leave: float
    back: float
    _rounds: dict[int, np.ndarray] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.leave <= 1:
            raise ValueError(f"leave is {self.leave}: it must be within 0 and 1")
        if not 0 < self.back <= 1:
            raise ValueError(f"back is {self.back}: it must be more than 0, and at most 1")

    @property
    def share(self) -> float:
        """The stationary share of clients that are there."""
        return self.back / (self.leave + self.back)

    def is_there(self, client: int, edge_round: int) -> bool:
        """Return whether a client is there when an edge round begins."""
        known = self._rounds.get(client)
        if known is None or len(known) < edge_round:
            # From the start, as the chain has no shortcut: twice as far, so that the total stays in proportion.
            known = self._rounds[client] = self._chain(client, max(64, 2 * edge_round))
        return bool(known[edge_round - 1])

    def _chain(self, client: int, length: int) -> np.ndarray:
        drawn = _generator(self.seed, b"availability", client).random(length)
        states = np.empty(length, dtype=bool)
        chance = self.share
        for i, number in enumerate(drawn):
            states[i] = number < chance
            chance = 1 - self.leave if states[i] else self.back
        return states


@dataclass(frozen=True)
class Trace:
    """Clients are there as a trace says.

    Parameters
    ----------
    spans : Mapping[int, tuple[tuple[int, int], ...]]
        By client, the edge rounds in which it is there: from the first number up to, without, the second. A client
        that has none is always there.
    """

    spans: Mapping[int, tuple[tuple[int, int], ...]]

    def is_there(self, client: int, edge_round: int) -> bool:
        """Return whether a client is there when an edge round begins."""
        spans = self.spans.get(client)
        return spans is None or any(start <= edge_round < end for start, end in spans)


def read_trace(path: Path, num_clients: int) -> Trace:
    """Read a trace: a CSV file with the columns client, from, to, see `Trace`.

    Parameters
    ----------
    path : Path
        The file; its numbers are whole, edge rounds count from 1.
    num_clients : int
        Clients are 0 to ``num_clients - 1``.

    Raises
    ------
    ValueError
        If it is not such a file; the message has the line.
    OSError
        If it can't be read.
    """
    spans: dict[int, list[tuple[int, int]]] = {}
    for where, words in _rows(path, COLUMNS):
        client, start, end = _span(where, words, num_clients)
        spans.setdefault(client, []).append((start, end))
    return Trace({client: tuple(sorted(own)) for client, own in spans.items()})


def read_moves(path: Path, num_clients: int, edges: Collection[str]) -> list[tuple[int, int, str]]:
    """Read how clients move between edges: a CSV file with the columns client, from, edge.

    Parameters
    ----------
    path : Path
        The file. From the global round ``from`` on, counted from 1, the client is under the edge.
    num_clients : int
        Clients are 0 to ``num_clients - 1``.
    edges : Collection[str]
        Names of the edges.

    Returns
    -------
    list[tuple[int, int, str]]
        Global round, client and edge of each move, in the file's order.

    Raises
    ------
    ValueError
        If it is not such a file; the message has the line.
    OSError
        If it can't be read.
    """
    moves = dict[tuple[int, int], str]()
    for where, words in _rows(path, MOVES):
        start, client, edge = _move(where, words, num_clients, edges)
        if moves.setdefault((start, client), edge) != edge:
            raise ValueError(f"{where}: client {client} is at two edges from round {start} on")
    return [(*when, edge) for when, edge in moves.items()]


def drops_out(seed: int, client: int, edge_round: int, probability: float) -> bool:
    """Return whether a client that began an edge round is gone before it answers.

    Parameters
    ----------
    seed, client, edge_round : int
        The answer follows these alone.
    probability : float
        How probable it is; whoever drops out with one probability does with every larger one.
    """
    return bool(_generator(seed, b"dropout", client, edge_round).random() < probability)


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[str, list[str]]]:
    """Yield where they are and the words of a CSV file's lines, the empty ones and that of the columns left out."""
    first, rows = csv_lines(path)
    if tuple(first) != columns:
        raise ValueError(f"{path}, line 1: its columns must be {','.join(columns)}")
    yield from rows


def _span(where: str, words: list[str], num_clients: int) -> tuple[int, int, int]:
    try:
        client, start, end = (int(word) for word in words)
    except ValueError:
        raise ValueError(f"{where}: {','.join(words)!r} is not three whole numbers") from None
    _check_client(where, client, num_clients)
    if not 1 <= start < end:
        raise ValueError(f"{where}: from is {start} and to is {end}: from must be 1 or more, and to more than from")
    return client, start, end


def _move(where: str, words: list[str], num_clients: int, edges: Collection[str]) -> tuple[int, int, str]:
    try:
        client, start = (int(word) for word in words[:-1])
    except ValueError:
        raise ValueError(f"{where}: {','.join(words)!r} is not two whole numbers and an edge") from None
    _check_client(where, client, num_clients)
    if start < 1:
        raise ValueError(f"{where}: from is {start}: it must be 1 or more")
    if (edge := words[-1].strip()) not in edges:
        raise ValueError(f"{where}: edge is {edge!r}: allowed are {', '.join(edges)}")
    return start, client, edge


def _check_client(where: str, client: int, num_clients: int) -> None:
    if not 0 <= client < num_clients:
        raise ValueError(f"{where}: client is {client}: allowed is 0 to {num_clients - 1}")


def _generator(seed: int, purpose: bytes, *which: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(*purpose, *which)))
