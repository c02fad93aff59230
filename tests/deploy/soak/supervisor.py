"""Keeps the programs of a deployment going, as systemd does by ``deploy/systemd``."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from flwr_run import descendants
from local import Program, StartError

RESTART_SECONDS = 15.0  # RestartSec of the units


@dataclass
class Unit:
    """A program that is started again when it ends.

    Attributes
    ----------
    name : str
        What to call it.
    kind : str
        ``"device"``, ``"gateway"``, ``"superlink"``, ``"edge-run"`` or ``"cloud-run"``.
    start : Callable[[], Program]
        Starts it; called again for every start.
    victim : Callable[[], int | None]
        Returns the process that a fault is for: the program's, or that of the run that it waits for.
    program : Program, optional
        The program; None before the first start.
    is_wanted : bool
        Whether it is to be started again.
    stopped : list[int]
        Its processes that are stopped at the moment.
    starts : int
        How often it was started.
    """

    name: str
    kind: str
    start: Callable[[], Program]
    victim: Callable[[], int | None]
    program: Program | None = None
    is_wanted: bool = True
    stopped: list[int] = field(default_factory=list)
    starts: int = 0
    _ended_at: float | None = None

    @property
    def is_running(self) -> bool:
        """Whether its process is there."""
        return self.program is not None and self.program.process.poll() is None

    def look(self) -> bool:
        """Start it where it is due; return whether it was."""
        if self.is_running or not self.is_wanted:
            self._ended_at = None
            return False
        now = time.monotonic()
        if self.program is not None and self._ended_at is None:
            self._ended_at = now
        if self._ended_at is not None and now < self._ended_at + RESTART_SECONDS:
            return False
        self._ended_at = None
        self.program = self.start()
        self.starts += 1
        return True

    def kill(self, pid: int) -> None:
        """Kill a process of it and all that this has started, as systemd does with what is left of a unit."""
        self.stopped = []
        _signal([pid, *descendants(pid)], signal.SIGKILL)

    def stop(self, pid: int) -> None:
        """Stop a process of it, and all that this has started, until they `go_on`."""
        self.stopped = [pid, *descendants(pid)]
        _signal(self.stopped, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let what is stopped go on."""
        _signal(self.stopped, signal.SIGCONT)
        self.stopped = []

    def end(self, seconds: float) -> int:
        """Ask it to end, for good, and return its exit status; StartError if it does not."""
        self.is_wanted = False
        if self.program is None:
            return 0
        process = self.program.process
        if process.poll() is None:
            process.terminate()
        return self.wait(seconds)

    def wait(self, seconds: float) -> int:
        """Return the exit status of its program at the end; StartError if it lasts longer."""
        assert self.program is not None
        try:
            return self.program.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise StartError(f"{self.name} does not end within {seconds:.0f} s") from None


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
