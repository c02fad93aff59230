"""Calls in threads side by side, with their results in the order of the calls."""

import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from logging import getLogger
from typing import Any, Generic, Protocol, TypeVar

logger = getLogger("espalier")

Result = TypeVar("Result")


class Runs(Protocol):
    """Makes calls and returns their results, in the order of the calls."""

    def __call__(self, kind: str, calls: Sequence[Callable[[], Result]]) -> list[Result]:
        """Make all calls, of one kind; what one of them raises ends them all."""


def one_by_one(kind: str, calls: Sequence[Callable[[], Result]]) -> list[Result]:
    """Make calls one after the other, in the thread of whoever asks."""
    return [call() for call in calls]


class _Here(threading.local):
    place = 0


_HERE = _Here()


def place_here() -> int:
    """Return which of the threads that work side by side this one is; 0 is whoever asked for the calls.

    Two calls that run at the same time have different places, so what can't be shared is made once for each.
    """
    return _HERE.place


@dataclass(frozen=True)
class Took:
    """What calls took that were made in threads.

    Parameters
    ----------
    wall : float
        Seconds, all of them together.
    at_work : float
        Seconds that each call took, added up.
    cpu : float
        Of these, seconds in which a processor was at work for it. The rest it waited: for another thread that had
        Python's lock, or for a processor that another program had.
    """

    wall: float = 0.0
    at_work: float = 0.0
    cpu: float = 0.0

    def plus(self, other: "Took") -> "Took":
        """Return what both took."""
        return Took(self.wall + other.wall, self.at_work + other.at_work, self.cpu + other.cpu)


class Threads:
    """Makes calls in threads.

    Parameters
    ----------
    count : int
        Threads, at least 1; whoever asks for the calls is one of them.
    begin : Callable[[], object] (default: nothing)
        What each of the other threads does first.

    Notes
    -----
    The other threads begin and end with the calls, so none is left where an exception, such as KeyboardInterrupt, ends
    them all: each is interrupted where it is, and waited for.
    """

    def __init__(self, count: int, begin: Callable[[], object] = lambda: None) -> None:
        if count < 1:
            raise ValueError(f"count is {count}: it must be 1 or more")
        self.count = count
        self._begin = begin

    def __call__(self, kind: str, calls: Sequence[Callable[[], Result]]) -> list[Result]:
        """Make all calls; they begin in their order, in as many threads as there are."""
        if self.count == 1 or len(calls) < 2:
            return one_by_one(kind, calls)
        return self.timed(calls)[0]

    def timed(self, calls: Sequence[Callable[[], Result]]) -> tuple[list[Result], Took]:
        """Make all calls, and say what they took."""
        work = _Work(calls)
        others = [_Worker(work, place, self._begin) for place in range(1, min(self.count, len(calls)))]
        started = time.perf_counter()
        try:
            for other in others:
                other.start()
            work.go_on()
            for other in others:
                other.over.wait()
                other.join()
        except BaseException:
            work.left.clear()  # who has not begun finds nothing to do
            while at_work := [other for other in others if other.works]:
                for other in at_work:
                    other.interrupt()
                    other.over.wait(0.1)
            for other in others:
                if other.is_alive():
                    other.join()
            raise
        if work.fault is not None:
            raise work.fault
        wall = time.perf_counter() - started
        return [work.results[i] for i in range(len(calls))], Took(wall, sum(work.at_work), sum(work.cpu))


class FittingThreads:
    """Makes calls in as many threads as pay: where calls wait too much for each other, in fewer.

    Python's lock lets one thread at a time start operations. Where these are small, threads wait for it, and can take
    longer than one does. So the first calls of each kind, but those of the very first time, are measured; then it is
    decided once, and logged for the first kind of which fewer do.

    Parameters
    ----------
    most : int
        The most threads.
    begin : Callable[[], object] (default: nothing)
        What each of the other threads does first.
    """

    def __init__(self, most: int, begin: Callable[[], object] = lambda: None) -> None:
        self._most = most
        self._begin = begin
        self._said = False
        self._took: dict[str, Took] = {}
        self._decided: dict[str, Threads] = {}

    def __call__(self, kind: str, calls: Sequence[Callable[[], Result]]) -> list[Result]:
        """Make all calls."""
        if kind in self._decided:
            return self._decided[kind](kind, calls)
        threads = Threads(self._most, self._begin)
        if self._most == 1 or len(calls) < 2:
            return one_by_one(kind, calls)
        results, took = threads.timed(calls)
        if kind not in self._took:  # data were read, and models made
            self._took[kind] = Took()
            return results
        self._took[kind] = self._took[kind].plus(took)
        if self._took[kind].wall >= ENOUGH_SECONDS:
            count = fitting_count(self._most, self._took[kind])
            if count < self._most and not self._said:
                logger.info("%s runs in %d of %d threads: others would only wait for them", kind, count, self._most)
                self._said = True
            self._decided[kind] = Threads(count, self._begin)
        return results


ENOUGH_SECONDS = 0.1  # that calls are measured for
BUSY = 0.75  # share of a call's time from which on it hardly waits
# Processors at work at the same time, from which on threads are quicker than one: each takes longer beside others.
PAYS = 1.25


def fitting_count(most: int, took: Took) -> int:
    """Return how many of `most` threads pay for calls such as those that took this.

    All, where calls did not wait; else a quarter more than the processors that were at work at the same time.
    """
    if took.cpu >= BUSY * took.at_work:
        return most
    at_once = took.cpu / took.wall
    return 1 if at_once < PAYS else min(most, int(PAYS * at_once) + 1)


class _Work(Generic[Result]):
    """Calls that several threads make, each the next one that nobody has begun."""

    def __init__(self, calls: Sequence[Callable[[], Result]]) -> None:
        self.left = deque(enumerate(calls))
        self.results: dict[int, Result] = {}
        self.at_work: list[float] = []
        self.cpu: list[float] = []
        self.fault: BaseException | None = None

    def go_on(self) -> None:
        """Make calls until none is left."""
        while True:
            try:
                i, call = self.left.popleft()
            except IndexError:
                return
            began, worked = time.perf_counter(), time.thread_time()
            self.results[i] = call()
            self.cpu.append(time.thread_time() - worked)
            self.at_work.append(time.perf_counter() - began)


class _Worker(threading.Thread):
    """One of the other threads; what it fails on ends the work of all.

    Whoever waits for it waits for `over`: an interrupt of `join` makes Python 3.11 and 3.12 take a thread for dead.
    """

    def __init__(self, work: _Work[Any], place: int, begin: Callable[[], object]) -> None:
        super().__init__(name=f"espalier-{place}", daemon=True)
        self._work, self._place, self._begin = work, place, begin
        self._lock = threading.Lock()
        self.works = False
        self.over = threading.Event()

    def run(self) -> None:
        _HERE.place = self._place
        try:
            self.works = True
            try:
                self._begin()
                self._work.go_on()
            finally:
                with self._lock:  # from here on nobody interrupts
                    self.works = False
                for _ in range(2):  # an interrupt that is on its way comes here, not in what ends the thread
                    pass
        except BaseException as error:
            self._work.fault = self._work.fault or error
            self._work.left.clear()
        self.over.set()

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the thread, as soon as it is back from whatever is not Python."""
        with self._lock:
            if self.works and self.ident is not None:
                target, error = ctypes.c_ulong(self.ident), ctypes.py_object(KeyboardInterrupt)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(target, error)
