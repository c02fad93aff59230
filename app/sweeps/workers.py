"""Runs side by side, each in a process of its own."""

import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from espalier.app.comparison.runs import is_surely_over
from espalier.app.ground.regular_files import open_to_append, open_to_read
from espalier.app.reports.owner import is_owned
from espalier.app.sweeps.grid import PlannedRun, check_place
from espalier.clients.device.machine import cpu_count

LOOK_SECONDS = 0.2
PATIENCE_SECONDS = 60.0  # for a run that was interrupted to end by itself
LOGS = "logs"
MOST_OF_LOG = 2**20  # bytes that are looked through, at its end, for why a run failed


class Watcher(Protocol):
    """Is told how far the runs of a sweep are."""

    def started(self, run: PlannedRun, rounds: int) -> None:
        """Notice that a run begins, after rounds that are over already."""

    def went_on(self, run: PlannedRun, rounds: int) -> None:
        """Notice the rounds of a run that are over; called now and then while it lasts."""

    def ended(self, run: PlannedRun, path: Path, why: str) -> None:
        """Notice that a run is over; `why` it failed, or an empty text."""

    def waits(self, run: PlannedRun) -> None:
        """Notice that another process makes a run."""


@dataclass
class Child:
    """The process of a run.

    Parameters
    ----------
    run : PlannedRun
        What it makes.
    path : Path
        The run's folder.
    process : subprocess.Popen
        The process.
    log : Path
        What it prints, behind what the run's earlier processes printed.
    log_start : int (default: 0)
        Where its own lines begin there, in bytes.
    """

    run: PlannedRun
    path: Path
    process: "subprocess.Popen[bytes]"
    log: Path
    log_start: int = 0
    _read: int = 0
    _rounds: int = 0

    @classmethod
    def start(cls, run: PlannedRun, path: Path, cores: int) -> "Child":
        """Begin a run, or go on with one that was interrupted; in process it has so many cores."""
        begun = (path / "config.json").exists()
        values = {"report.group": path.parent.name, **run.given} | (
            {"resume": str(path)} if begun else {"output-dir": str(path)}
        )
        # What JSON writes of text and numbers TOML reads.
        arguments = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
        log = path.parent / LOGS / f"{path.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with open_to_append(log) as out:
            log_start = out.tell()
            process = subprocess.Popen(
                [*python_of("espalier.app.sweeps.child"), str(cores), *arguments],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a terminal's Ctrl-C is for the sweep, which interrupts its runs
            )
        return cls(run, path, process, log, log_start)

    def rounds(self) -> int:
        """Return how many global rounds are over."""
        try:
            with open_to_read(self.path / "metrics.jsonl") as file:
                if file.seek(0, 2) < self._read:  # a resumed run has dropped lines
                    self._read = self._rounds = 0
                file.seek(self._read)
                text = file.read()
        except OSError:
            return self._rounds
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        self._rounds += whole.count(b'"scope": "global"')
        return self._rounds

    def fault(self) -> str:
        """Return why the process, which has ended, failed; an empty text if it has not."""
        if self.process.returncode == 0 and (self.path / "summary.json").exists():
            return ""
        own = b""
        with suppress(OSError), open_to_read(self.log) as file:
            file.seek(max(self.log_start, os.fstat(file.fileno()).st_size - MOST_OF_LOG))
            own = file.read(MOST_OF_LOG)
        lines = own.decode(errors="replace").strip().splitlines()
        said = next((line for line in reversed(lines) if line.startswith("error: ")), lines[-1] if lines else "")
        reason = f", {said.removeprefix('error: ')[:300]}" if said else ""
        reason = reason if self.process.returncode else ", and no summary.json"
        return f"exit code {self.process.returncode}{reason} (see {self.log})"

    def interrupt(self) -> None:
        """Tell the process to end after what it is doing."""
        if self.process.stdin:
            self.process.stdin.close()

    def end(self, patience_seconds: float = PATIENCE_SECONDS) -> None:
        """Wait for the end of a process that was interrupted; after that time, kill it."""
        try:
            self.process.wait(patience_seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def python_of(module: str) -> list[str]:
    """Return what starts a module in a Python that finds modules in the same order as this one does.

    By itself it would look in the current folder first, where a module of the user's may hide a library's.
    """
    path = list(map(str, sys.path))
    run = f"import runpy, sys; sys.path[:] = {path!r}; runpy.run_module({module!r}, None, '__main__', True)"
    return [sys.executable, "-P", "-c", run]


def make(places: Mapping[Path, PlannedRun], workers: int, watcher: Watcher) -> dict[str, str]:
    """Make runs that are not over, so many at a time, and return the names of those that failed, each with the reason.

    A run that another process makes is left to it and looked at again at the end. Whatever ends this function, a
    Ctrl-C too, ends the processes that it has started, and they can go on from their last whole round.

    Raises
    ------
    UserError
        If another sweep has begun a run of other settings in one of the folders.

    Parameters
    ----------
    places : Mapping[Path, PlannedRun]
        The runs by their folders.
    workers : int
        Processes at a time; each has its share of the cores.
    watcher : Watcher
        Is told how far they are.
    """
    waiting, running = deque(places), list[Child]()
    cores = max(cpu_count() // max(min(workers, len(places)), 1), 1)
    elsewhere, failed = set[Path](), dict[Path, str]()

    def over(path: Path, why: str) -> None:
        if why:
            failed[path] = why
        watcher.ended(places[path], path, why)

    def left_to_another(path: Path) -> None:
        if path not in elsewhere:
            watcher.waits(places[path])
        elsewhere.add(path)
        waiting.append(path)

    try:
        while waiting or running:
            for _ in range(len(waiting) if len(running) < workers else 0):
                path = waiting.popleft()
                check_place(path, places[path])
                if is_owned(path):
                    left_to_another(path)
                elif is_surely_over(path):  # another process has made it
                    over(path, "")
                else:
                    elsewhere.discard(path)
                    child = Child.start(places[path], path, cores)
                    running.append(child)
                    watcher.started(child.run, child.rounds())
                    if len(running) == workers:
                        break
            time.sleep(LOOK_SECONDS)
            for child in list(running):
                is_over = child.process.poll() is not None
                watcher.went_on(child.run, child.rounds())
                if is_over:
                    running.remove(child)
                    child.interrupt()  # closes the pipe
                    check_place(child.path, child.run)
                    if (why := child.fault()) and (is_owned(child.path) or is_surely_over(child.path)):
                        left_to_another(child.path)  # which began it while the child started
                    else:
                        over(child.path, why)
    finally:
        for child in running:
            child.interrupt()
        for child in running:
            child.end()
    return {places[path].name: why for path, why in failed.items()}
