"""A clock of simulated events, and how long clients take where no radio world says it.

What happens at one time happens in the order of the nodes' numbers, so what follows from it depends on no machine.
"""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

TRACE_COLUMNS = ("client", "seconds")
LONGEST_SECONDS = 1e9  # of a round in a trace, some 30 years


class EventClock:
    """Simulated time: nodes begin and end, and time passes from one end to the next.

    Attributes
    ----------
    now : float
        Seconds since the start.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._ends: dict[int, float] = {}

    @property
    def at_work(self) -> list[int]:
        """The nodes that have begun and were not yet `taken`, in their order."""
        return sorted(self._ends)

    def begin(self, node: int, seconds: float) -> None:
        """Let a node begin now what takes so many seconds.

        Raises
        ------
        ValueError
            If it is at work, or `seconds` is negative or not finite.
        """
        if node in self._ends:
            raise ValueError(f"node {node} is at work until {self._ends[node]:g} s")
        if not 0 <= seconds < np.inf:
            raise ValueError(f"seconds = {seconds}: must be a finite number >= 0")
        self._ends[node] = self.now + float(seconds)

    def taken(self) -> int | None:
        """Return the node that ended first, of those that have by now, and forget it; None if there is none."""
        if not self._ends:
            return None
        end, node = min((end, node) for node, end in self._ends.items())
        if end > self.now:
            return None
        del self._ends[node]
        return node

    def wait(self, until: float = np.inf) -> None:
        """Let time pass until the next node ends, or until a time if that is before it.

        Raises
        ------
        ValueError
            If nobody is at work and there is no such time.
        """
        then = min([until, *self._ends.values()])
        if then == np.inf:
            raise ValueError("nobody is at work: time would pass for ever")
        self.now = max(self.now, then)

    def pass_until(self, time: float) -> None:
        """Let time pass until a time; who ends meanwhile is `taken` afterwards.

        Raises
        ------
        ValueError
            If it is not finite.
        """
        if not time < np.inf:
            raise ValueError(f"time = {time}: must be a finite number")
        self.now = max(self.now, float(time))

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain data."""
        return {"now": self.now, "ends": dict(self._ends)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the state that `state_dict` returned.

        Raises
        ------
        ValueError
            If it has what is no time. Nothing is changed then.
        """
        now, ends = state["now"], dict(state["ends"])
        if not all(isinstance(time, float) and 0 <= time < np.inf for time in (now, *ends.values())):
            raise ValueError("now, ends: must be finite numbers >= 0")
        self.now, self._ends = now, ends


class ClientSeconds:
    """How long each client takes for its part of a round.

    Parameters
    ----------
    seconds : Sequence[Sequence[float]]
        By client: those of its rounds in turn, from the start again after the last.

    Raises
    ------
    ValueError
        If there is no client, or one without a time, or a time is negative or not finite.
    """

    def __init__(self, seconds: Sequence[Sequence[float]]) -> None:
        if not seconds:
            raise ValueError("seconds: must be those of one client or more")
        for client, own in enumerate(seconds):
            if not own or not all(0 <= value < np.inf for value in own):
                raise ValueError(f"seconds of client {client} = {list(own)}: must be one or more finite numbers >= 0")
        self._seconds = [tuple(map(float, own)) for own in seconds]

    def __len__(self) -> int:
        return len(self._seconds)

    def of(self, client: int, number: int) -> float:
        """Return the seconds that a client takes in its round of a number, from 1."""
        own = self._seconds[client]
        return own[(number - 1) % len(own)]


def draw_client_seconds(num: int, seed: int, *, median_seconds: float, sigma: float) -> ClientSeconds:
    """Draw a speed for each client: it takes ``median_seconds * exp(sigma * z)``, z standard normal, in every round.

    A client's draw does not depend on how many there are. With ``sigma = 1`` the middle two thirds of the clients are
    within a factor of e of the median.

    Parameters
    ----------
    num : int
        Number of clients.
    seed : int
        The only source of chance. Not negative.
    median_seconds : float
        Of the lognormal distribution.
    sigma : float
        Standard deviation of its logarithm; 0: all are equally fast.

    Raises
    ------
    ValueError
        If a value is not allowed.
    """
    for name, value in (("median_seconds", median_seconds), ("sigma", sigma)):
        if not 0 <= value < np.inf:
            raise ValueError(f"{name} = {value}: must be a finite number >= 0")
    z = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=tuple(b"speeds"))).standard_normal(num)
    return ClientSeconds([[seconds] for seconds in (median_seconds * np.exp(sigma * z)).tolist()])


def read_client_seconds(path: Path, num: int) -> ClientSeconds:
    """Read a trace: a CSV file with columns ``client`` and ``seconds``, one row for each round of a client, in order.

    Parameters
    ----------
    path : Path
        The file.
    num : int
        Number of clients; each has a row or more, and rows of others are an error.

    Raises
    ------
    ValueError
        If it is not such a file; in one line.
    OSError
        If it can't be read.
    """
    try:
        return _client_seconds(path, num)
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is no CSV file: {error}") from None


def _client_seconds(path: Path, num: int) -> ClientSeconds:
    seconds: list[list[float]] = [[] for _ in range(num)]
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file)
        if missing := [column for column in TRACE_COLUMNS if column not in (rows.fieldnames or ())]:
            raise ValueError(f"no column {missing[0]!r}: needed are {', '.join(TRACE_COLUMNS)}")
        for row in rows:
            try:
                client, value = int(row["client"]), float(row["seconds"])
            except (TypeError, ValueError):
                raise ValueError(f"line {rows.line_num}: client is an integer and seconds a number") from None
            if not 0 <= client < num or not 0 <= value <= LONGEST_SECONDS:
                raise ValueError(
                    f"line {rows.line_num}: client {client}, {value:g} s: allowed are 0 to {num - 1}, "
                    f"and numbers from 0 to {LONGEST_SECONDS:g}"
                )
            seconds[client].append(value)
    if absent := [client for client, own in enumerate(seconds) if not own]:
        raise ValueError(f"no row for client {absent[0]}")
    return ClientSeconds(seconds)
