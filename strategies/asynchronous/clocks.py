"""Two clocks for a tier that waits for nobody: one of simulated events, and the one on the wall.

A tier tells its clock who begins and asks it who has ended; only the clock knows whether time is simulated.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from math import inf, isfinite
from typing import Any, Protocol

from ..exchange import Beside, Exchanges, Until
from .flights import Begin, FlightPart

OnPart = Callable[[int, FlightPart], FlightPart]
"""Told, when it is known, what a node gave; returns that with the time that it took."""


class Clock(Protocol):
    """Lets nodes begin, and says who has ended. Nodes are numbers from 0.

    Attributes
    ----------
    now : float
        Seconds since the start.
    at_work : list[int]
        Those who have begun and were not yet taken.
    """

    @property
    def now(self) -> float: ...  # noqa: D102

    @property
    def at_work(self) -> list[int]: ...  # noqa: D102

    def begin(self, numbers: Mapping[int, int], begin: Begin, on_part: OnPart) -> Exchanges[None]:
        """Let nodes begin.

        Parameters
        ----------
        numbers : Mapping[int, int]
            Number of its own round by node.
        begin : Begin
            Lets nodes train; one conversation for all, or one for each.
        on_part : Callable[[int, FlightPart], FlightPart]
            Told what a node gave.
        """

    def taken(self) -> int | None:
        """Return a node that has ended, once; None if there is none."""

    def wait(self, until: float = inf) -> Exchanges[None]:
        """Let time pass until a node ends, or until a time."""

    def figures(self) -> dict[str, float]:
        """Return the time as lines about a round have it, by its name there."""

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive an interruption."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""


class Events(Protocol):
    """Simulated events, as `espalier.sim.clock.EventClock` has them: who ends at one time comes in the nodes' order."""

    @property
    def now(self) -> float: ...  # noqa: D102

    @property
    def at_work(self) -> list[int]: ...  # noqa: D102

    def begin(self, node: int, seconds: float) -> None:
        """Let a node begin what takes so long."""

    def taken(self) -> int | None:
        """Return a node that has ended, once; None if there is none."""

    def wait(self, until: float = inf) -> None:
        """Let time pass until a node ends, or until a time."""

    def pass_until(self, time: float) -> None:
        """Let time pass until a time, whoever ends meanwhile."""

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive an interruption."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""


class SimulatedClock:
    """Simulated time: what nodes give is known as soon as they begin, and there when events say so.

    Parameters
    ----------
    events : Events
        Of this tier alone.
    """

    def __init__(self, events: Events) -> None:
        self._events = events

    @property
    def now(self) -> float:
        """Simulated seconds since the start."""
        return self._events.now

    @property
    def at_work(self) -> list[int]:
        """Those who have begun and were not yet taken."""
        return self._events.at_work

    def begin(self, numbers: Mapping[int, int], begin: Begin, on_part: OnPart) -> Exchanges[None]:
        """Let nodes train at once, whatever time that really takes."""
        parts = yield from begin(numbers)
        for node in numbers:
            self._events.begin(node, on_part(node, parts[node]).seconds)

    def taken(self) -> int | None:
        """Return the node that ended first, of those that have by now."""
        return self._events.taken()

    def wait(self, until: float = inf) -> Exchanges[None]:
        """Let time pass; nobody is asked anything meanwhile."""
        self._events.wait(until)
        yield from ()

    def pass_until(self, time: float) -> None:
        """Let time pass until a time, as for an edge that waits for others while its clients work on."""
        self._events.pass_until(time)

    def figures(self) -> dict[str, float]:
        """Return the time as ``simulated_seconds``."""
        return {"simulated_seconds": self.now}

    def state_dict(self) -> dict[str, Any]:
        """Return the events to come."""
        return self._events.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self._events.load_state_dict(state)


def check_pace(clock: Clock, pace: object) -> None:
    """Raise ValueError where nothing says how long nodes take: time is simulated, and there is no pace."""
    if isinstance(clock, SimulatedClock) and pace is None:
        raise ValueError("pace: a SimulatedClock does not show how long nodes take: give a function that says it")


class WallClock:
    """Real time: a node has ended when its answer is here, and who comes first is first.

    Parameters
    ----------
    seconds : Callable[[], float] (default: `time.monotonic`)
        A clock that never goes back.

    Notes
    -----
    It starts when the first node begins. Nodes at work are not part of its state: who has to go on from it asks anew.
    """

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._before = 0.0  # seconds of an interrupted run
        self._started: float | None = None
        self._at_work: set[int] = set()
        self._ended: deque[int] = deque()

    @property
    def now(self) -> float:
        """Seconds since the start; of an interrupted run, those before it included."""
        return self._before + (0.0 if self._started is None else self._seconds() - self._started)

    @property
    def at_work(self) -> list[int]:
        """Those who have begun and were not yet taken."""
        return sorted(self._at_work)

    def begin(self, numbers: Mapping[int, int], begin: Begin, on_part: OnPart) -> Exchanges[None]:
        """Let nodes train by themselves, each for its own time."""
        if self._started is None:
            self._started = self._seconds()
        self._at_work |= numbers.keys()
        yield Beside([self._flight(node, number, begin, on_part) for node, number in numbers.items()])

    def taken(self) -> int | None:
        """Return the node whose answer came first, of those that are here."""
        if not self._ended:
            return None
        node = self._ended.popleft()
        self._at_work.remove(node)
        return node

    def wait(self, until: float = inf) -> Exchanges[None]:
        """Wait for an answer, or for a time."""
        yield Until(lambda: bool(self._ended) or self.now >= until, lambda: until - self.now)

    def figures(self) -> dict[str, float]:
        """Return nothing: lines have ``wall_seconds`` anyway."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the time, and who has ended."""
        return {"now": self.now, "ended": list(self._ended)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the state that `state_dict` returned.

        Raises
        ------
        ValueError
            If its time is none, or its nodes are not. Nothing is changed then.
        """
        now, ended = state["now"], list(state["ended"])
        if not isinstance(now, float) or not isfinite(now) or now < 0:
            raise ValueError("now: must be a finite number >= 0")
        if not all(isinstance(node, int) for node in ended) or len({*ended}) < len(ended):
            raise ValueError("ended: must be different nodes")
        self._before, self._started = now, None
        self._ended, self._at_work = deque(ended), set(ended)

    def _flight(self, node: int, number: int, begin: Begin, on_part: OnPart) -> Exchanges[None]:
        parts = yield from begin({node: number})
        on_part(node, parts[node])
        self._ended.append(node)
