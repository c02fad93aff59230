"""Meters of a simulated run: the time that has passed and the energy that was spent."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


class SimulatedClock:
    """Simulated time, in seconds: edges run in parallel within a global round and wait for each other at its end.

    Parameters
    ----------
    edges : Iterable[str | int]
        Names of the edges; one or more, all different.

    Raises
    ------
    ValueError
        If there is no edge, or a name comes twice.
    """

    def __init__(self, edges: Iterable[str | int]) -> None:
        edges = list(edges)
        if not edges or len(set(edges)) < len(edges):
            raise ValueError(f"edges = {edges}: must be one or more names, all different")
        self._seconds = dict.fromkeys(edges, 0.0)
        self._round_start = 0.0

    @property
    def now(self) -> float:
        """The time that the edge furthest ahead has reached; between global rounds, all of them."""
        return max(self._seconds.values())

    def edge_now(self, edge: str | int) -> float:
        """Return the time that an edge has reached.

        Raises
        ------
        KeyError
            If there is no such edge.
        """
        return self._seconds[edge]

    def advance(self, edge: str | int, seconds: float) -> None:
        """Let time pass at one edge: the length of an edge round, say.

        Raises
        ------
        KeyError
            If there is no such edge.
        ValueError
            If `seconds` is negative or not finite.
        """
        if not 0 <= seconds < np.inf:
            raise ValueError(f"seconds = {seconds}: must be a finite number >= 0")
        self._seconds[edge] += float(seconds)

    def end_round(self) -> float:
        """End a global round: all edges wait for the slowest. Return how long the round took."""
        now = self.now
        duration = now - self._round_start
        self._seconds = dict.fromkeys(self._seconds, now)
        self._round_start = now
        return duration

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain data."""
        return {
            "edges": list(self._seconds),
            "seconds": list(self._seconds.values()),
            "round_start": self._round_start,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the state that `state_dict` returned.

        Raises
        ------
        ValueError
            If it is of other edges, or has what is no time. Nothing is changed then.
        """
        if set(state["edges"]) != set(self._seconds):
            raise ValueError(f"edges = {state['edges']}: must be {list(self._seconds)}, those of this clock")
        times = [*state["seconds"], state["round_start"]]
        if not all(isinstance(time, int | float) and 0 <= time < np.inf for time in times):
            raise ValueError("seconds: must be finite numbers >= 0")
        self._seconds |= dict(zip(state["edges"], state["seconds"], strict=True))
        self._round_start = state["round_start"]


class EnergyMeter:
    """Joules per client, for computing and for uploading, since the start and in the current round.

    Parameters
    ----------
    num_clients : int
        U, 1 or more.

    Attributes
    ----------
    compute_joules, upload_joules : np.ndarray
        ``(U,)``: since the start, the current round included.
    round_compute_joules, round_upload_joules : np.ndarray
        ``(U,)``: since the last `end_round`.

    Raises
    ------
    ValueError
        If there are no clients.
    """

    _PARTS = ("compute_joules", "upload_joules", "round_compute_joules", "round_upload_joules")

    def __init__(self, num_clients: int) -> None:
        if num_clients < 1:
            raise ValueError(f"num_clients = {num_clients}: must be 1 or more")
        self._num_clients = num_clients
        self.compute_joules = np.zeros(num_clients)
        self.upload_joules = np.zeros(num_clients)
        self.round_compute_joules = np.zeros(num_clients)
        self.round_upload_joules = np.zeros(num_clients)

    @property
    def total_joules(self) -> np.ndarray:
        """What each client has spent since the start, ``(U,)``."""
        return self.compute_joules + self.upload_joules

    def add(self, clients: ArrayLike, compute_joules: ArrayLike, upload_joules: ArrayLike) -> None:
        """Book what some clients have spent.

        Parameters
        ----------
        clients : ArrayLike
            ``int (N,)``: which ones, from 0 to U - 1; one that comes twice has spent both, and none is fine.
        compute_joules, upload_joules : ArrayLike
            ``(N,)``, or one number for all: finite, not negative.

        Raises
        ------
        ValueError
            If there is no such client, or an energy is negative, not finite or of another length. Nothing is booked
            then.
        """
        clients = np.asarray(clients)
        if clients.size == 0:
            return
        if clients.dtype.kind not in "iu" or clients.min() < 0 or clients.max() >= self._num_clients:
            raise ValueError(f"clients = {clients.tolist()}: must be integers from 0 to {self._num_clients - 1}")
        for name, joules in (("compute_joules", compute_joules), ("upload_joules", upload_joules)):
            joules = np.asarray(joules)
            if joules.shape not in ((), clients.shape):
                raise ValueError(f"{name} has shape {joules.shape}: must be {clients.shape}, or one number")
            if (bad := joules[~((joules >= 0) & (joules < np.inf))]).size:
                raise ValueError(f"{name} = {bad.flat[0]}: must be a finite number >= 0")
        # Not `+=`, which would book a client that comes twice only once.
        np.add.at(self.compute_joules, clients, compute_joules)
        np.add.at(self.upload_joules, clients, upload_joules)
        np.add.at(self.round_compute_joules, clients, compute_joules)
        np.add.at(self.round_upload_joules, clients, upload_joules)

    def end_round(self) -> None:
        """Begin a new round: the round's figures start from 0 again."""
        self.round_compute_joules = np.zeros(self._num_clients)
        self.round_upload_joules = np.zeros(self._num_clients)

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return the state as arrays of its own."""
        return {name: getattr(self, name).copy() for name in self._PARTS}

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Take the state that `state_dict` returned.

        Raises
        ------
        ValueError
            If it is of another number of clients. Nothing is changed then.
        """
        shapes = {name: np.shape(state[name]) for name in self._PARTS}
        if set(shapes.values()) != {(self._num_clients,)}:
            raise ValueError(f"shapes = {shapes}: must be ({self._num_clients},) each, one number per client")
        for name in self._PARTS:
            setattr(self, name, np.array(state[name], dtype=float))
