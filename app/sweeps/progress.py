"""How far a sweep is: a line for each run, and in a terminal a bar for those that are being made."""

import time
from pathlib import Path

from rich.console import Console
from rich.progress import TaskID

from espalier.app.comparison.runs import read_run
from espalier.app.ground.errors import UserError
from espalier.app.ground.fields import POOL
from espalier.app.reports.metrics import in_digits
from espalier.app.reports.progress import bars
from espalier.app.sweeps.grid import PlannedRun
from espalier.clients.messages.train import ACCURACY, LOSS


class SweepProgress:
    """Shows runs as they begin and end, with the time that is left by the rounds made so far.

    Parameters
    ----------
    console : Console
        Where to.
    num_runs : int
        Runs of the sweep.
    already : int
        Those that were over before.
    rounds_left : int
        Global rounds of the others.
    every_seconds : float (default: 30)
        Least time between two lines on a run that goes on, where there are no bars.
    """

    def __init__(
        self, console: Console, num_runs: int, already: int, rounds_left: int, every_seconds: float = 30.0
    ) -> None:
        self._console, self._runs, self._over = console, num_runs, already
        self._left, self._made, self._every = rounds_left, 0, every_seconds
        self._began = self._last = time.monotonic()
        self._seen: dict[str, int] = {}
        self._said: dict[str, float] = {}
        self._bars: dict[str, TaskID] = {}
        self._progress = bars(console, transient=True, disable=not console.is_terminal)

    def __enter__(self) -> "SweepProgress":
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def started(self, run: PlannedRun, rounds: int) -> None:
        """Notice that a run begins."""
        self._left -= rounds
        self._seen[run.name], self._said[run.name] = rounds, time.monotonic()
        total = run.settings["global-rounds"]
        self._bars[run.name] = self._progress.add_task(run.name, completed=rounds, total=total)
        self._say(f"{run.name}: goes on after round {rounds}" if rounds else f"{run.name}: begins")

    def went_on(self, run: PlannedRun, rounds: int) -> None:
        """Notice the rounds of a run that are over."""
        before = self._seen[run.name]
        if rounds > before:
            self._made += rounds - before
            self._seen[run.name], self._last = rounds, time.monotonic()
        self._progress.update(self._bars[run.name], completed=rounds)
        now = time.monotonic()
        if not self._console.is_terminal and now - self._said[run.name] >= self._every:
            self._said[run.name] = now
            self._say(f"{run.name}: round {rounds}/{run.settings['global-rounds']}, {self._eta()}")

    def ended(self, run: PlannedRun, path: Path, why: str) -> None:
        """Notice that a run is over; rounds that it did not make, as it failed or was stopped, are not left."""
        self._left -= run.settings["global-rounds"]
        if run.name in self._bars:  # else another process has made it
            self._left += self._seen[run.name]
            self._progress.remove_task(self._bars.pop(run.name))
        self._over += 1
        done = f"failed: {why}" if why else _figures(path)
        self._say(f"[{self._over}/{self._runs}] {run.name}: {done}, {self._eta()}")

    def waits(self, run: PlannedRun) -> None:
        """Notice that another process makes a run, which this one may have begun in vain."""
        if run.name in self._bars:
            self._left += self._seen[run.name]
            self._progress.remove_task(self._bars.pop(run.name))
        self._say(f"{run.name}: another process makes it")

    def _say(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _eta(self) -> str:
        left = max(self._left - self._made, 0)
        if not self._made and left:
            return "sweep ETA after the first round"
        passed = time.monotonic() - self._began
        minutes, seconds = divmod(int(seconds_left(self._made, left, self._last - self._began, passed)), 60)
        return f"sweep ETA {minutes // 60}:{minutes % 60:02}:{seconds:02}"


def seconds_left(made: int, left: int, last: float, now: float) -> float:
    """Return what the rounds left take, by those made; one that takes longer counts as soon as it does.

    Parameters
    ----------
    made, left : int
        Rounds.
    last, now : float
        Seconds since the first began, when the last one was made and now.
    """
    return max(last / max(made, 1), now / (made + 1)) * left


def _figures(path: Path) -> str:
    """Return the figures over clients of a run in words, those on the test pool where there are none."""
    try:
        run = read_run(path)
    except UserError:  # another process has the folder just now
        return "done"
    if run.lacking:
        return run.lacking
    figures = run.figures
    names = [name if figures.get(name) is not None else POOL + name for name in (ACCURACY, LOSS)]
    shown = [(name, figures.get(name)) for name in (*names, "personalised_accuracy")]
    return ", ".join(f"{name} {in_digits(figure)}" for name, figure in shown if figure is not None) or "done"
