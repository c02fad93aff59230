"""Faults by a seeded plan: what is killed, stopped, or spoiled, and when."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.strategies.split.proxy import StreamFault, StreamProxy

from .supervisor import Unit

# Whatever is killed takes one to two minutes to come back, and all have to be back for a round to begin: so the next is
# killed when a round is over, or none was for long.
KILL_PAUSE_SECONDS = (60.0, 120.0)
LONGEST_KILL_PAUSE_SECONDS = 300.0
LOOK_SECONDS = 5.0
PAUSE_SECONDS = (3.0, 9.0)
STOP_SECONDS = (0.5, 10.0)
LONG_STOP_SECONDS = (70.0, 100.0)  # Flower misses whom it has not heard of for a minute
LONG_STOPS = 0.05
STREAM_FAULTS = 0.25  # of the faults that are no kills: about every second stream is spoiled
STREAM_KINDS = ("drop", "delay", "truncate")
DELAY_SECONDS = (0.5, 20.0)  # below and beyond `stream.timeout`
FAULT_BYTES = (100, 300_000)  # from within the handshake to beyond a round


@dataclass
class Chaos:
    """Injects faults.

    Parameters
    ----------
    units : Sequence[Unit]
        What may be killed or stopped.
    proxy : StreamProxy
        Where streams are spoiled.
    seed : int
        Decides all that does not depend on what is there.
    rounds : Callable[[], int]
        Returns how many rounds are over.
    log : Callable[..., object]
        Called with the fields of a line about each fault.
    """

    units: Sequence[Unit]
    proxy: StreamProxy
    seed: int
    rounds: Callable[[], int]
    log: Callable[..., object]

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._next = self._next_kill = self._last_kill = 0.0
        self._rounds = 0
        self._goes_on: dict[str, float] = {}
        self.counts: Counter[str] = Counter()

    def begin(self, now: float) -> None:
        """Begin, or go on, at a time."""
        self._next = now + self._random.uniform(*PAUSE_SECONDS)
        self._next_kill = now + self._random.uniform(*KILL_PAUSE_SECONDS)
        self._last_kill, self._rounds = now, self.rounds()

    def step(self, now: float) -> None:
        """Do what is due."""
        for unit in self.units:
            if unit.stopped and now >= self._goes_on[unit.name]:
                unit.go_on()
        if now >= self._next_kill:
            if self.rounds() == self._rounds and now < self._last_kill + LONGEST_KILL_PAUSE_SECONDS:
                self._next_kill = now + LOOK_SECONDS
            elif self._kill():
                self._next_kill = now + self._random.uniform(*KILL_PAUSE_SECONDS)
                self._last_kill, self._rounds = now, self.rounds()
        if now >= self._next:
            self._next = now + self._random.uniform(*PAUSE_SECONDS)
            if self._random.random() < STREAM_FAULTS:
                self._spoil()
            else:
                self._stop(now)

    def end(self) -> None:
        """Let all that is stopped go on, and spoil nothing more."""
        self.proxy.forgive()
        for unit in self.units:
            unit.go_on()

    def _choose(self) -> tuple[Unit, int] | None:
        """Return a unit that is there, each kind as often as the others, and the process to hit."""
        kind = self._random.choice(sorted({unit.kind for unit in self.units}))
        unit = self._random.choice([unit for unit in self.units if unit.kind == kind])
        if unit.stopped or not unit.is_running or (pid := unit.victim()) is None:
            return None
        return unit, pid

    def _kill(self) -> bool:
        """Kill something; return whether it was there."""
        if (chosen := self._choose()) is None:
            return False
        unit, pid = chosen
        unit.kill(pid)
        self._note("kill", unit.kind, unit.name)
        return True

    def _stop(self, now: float) -> None:
        is_long = self._random.random() < LONG_STOPS
        seconds = round(self._random.uniform(*(LONG_STOP_SECONDS if is_long else STOP_SECONDS)), 1)
        if chosen := self._choose():
            unit, pid = chosen
            unit.stop(pid)
            self._goes_on[unit.name] = now + seconds
            self._note("stop", unit.kind, unit.name, seconds=seconds)

    def _spoil(self) -> None:
        low, high = FAULT_BYTES
        fault = StreamFault(
            self._random.choice(STREAM_KINDS),
            self._random.choice(("up", "down")),
            int(low * (high / low) ** self._random.random()),
            round(self._random.uniform(*DELAY_SECONDS), 1),
        )
        self.proxy.add(fault)

    def struck(self, fault: StreamFault) -> None:
        """Note that a stream was spoiled; for the proxy to call."""
        more = {"seconds": fault.seconds} if fault.kind == "delay" else {}
        self._note(fault.kind, "stream", fault.direction, after_bytes=fault.after_bytes, **more)

    def _note(self, kind: str, target_kind: str, target: str, **more: object) -> None:
        self.counts[f"{kind} {target_kind}"] += 1
        self.log(kind=kind, of=target_kind, target=target, **more)
