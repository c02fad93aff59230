"""Progress with an estimate of the time left, as a bar in a terminal or as lines in a log."""

import time
from logging import getLogger
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from espalier.app.ground.figures import figure_names
from espalier.app.reports.metrics import in_digits
from espalier.strategies import Observer, Update

logger = getLogger("espalier")


def bars(console: Console, **options: Any) -> Progress:
    """Return where progress bars are drawn, each with its share and an ETA; `options` are those of `Progress`."""
    return Progress(
        TextColumn("{task.description}", markup=False),  # a figure may be called f1[macro]
        BarColumn(bar_width=20),
        TaskProgressColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
        console=console,
        **options,
    )


def progress_on(console: Console) -> "BarProgress | LogProgress":
    """Return a bar where it can be drawn anew, in a terminal, and lines elsewhere: in a file or pipe, under nohup."""
    is_drawn = console.file.isatty() and not console.is_dumb_terminal  # rich draws in files too, if FORCE_COLOR is set
    return BarProgress(console) if is_drawn else LogProgress()


class BarProgress(Observer):
    """A progress bar that moves with every edge round.

    Parameters
    ----------
    console : Console
        Where the bar is drawn.
    """

    def __init__(self, console: Console) -> None:
        self._bar = bars(console)
        self._task = self._bar.add_task("starting", total=None)
        self._total = 0

    def begin(self, done: int, total: int) -> None:
        """Start; counts are in edge rounds."""
        self._total = total
        self._bar.update(self._task, completed=done, total=total)
        self._bar.start()

    def on_edge_round(self, server_round: int, edge: str, update: Update) -> None:
        """Move on by one edge round."""
        self._bar.advance(self._task)

    def round_over(self, number: int, rounds: int, line: dict[str, Any]) -> None:
        """Show a round's figures beside the bar."""
        # Edges that the cloud did not choose are over as well.
        done = self._total * number / rounds
        self._bar.update(self._task, completed=done, description=f"round {number}/{rounds}{_figures(line)}")

    def end(self) -> None:
        """Stop drawing."""
        self._bar.stop()


class LogProgress(Observer):
    """A log line per global round, and in long rounds one now and then.

    Parameters
    ----------
    every_seconds : float (default: 20)
        Least time between two lines inside a round.
    """

    def __init__(self, every_seconds: float = 20.0) -> None:
        self._every = every_seconds
        self._started = self._last = 0.0
        self._already = self._done = self._total = 0

    def begin(self, done: int, total: int) -> None:
        """Start; counts are in edge rounds."""
        self._started = self._last = time.monotonic()
        self._already, self._done, self._total = done, done, total

    def on_edge_round(self, server_round: int, edge: str, update: Update) -> None:
        """Move on by one edge round."""
        self._done += 1
        if time.monotonic() - self._last >= self._every:
            self._log(f"{edge}, edge round {server_round}")

    def round_over(self, number: int, rounds: int, line: dict[str, Any]) -> None:
        """Log a round's figures."""
        # Edges that the cloud did not choose are over as well.
        self._done = self._total * number // rounds
        self._log(f"round {number}/{rounds}{_figures(line)}")

    def end(self) -> None:
        """Nothing to clean up."""

    def _log(self, text: str) -> None:
        self._last = time.monotonic()
        per_round = (self._last - self._started) / max(self._done - self._already, 1)
        left = int(per_round * max(self._total - self._done, 0))
        logger.info("%s  ETA %d:%02d", text, *divmod(left, 60))


def _figures(line: dict[str, Any]) -> str:
    """Return means over clients in words; where no client was evaluated, figures on the test pool."""
    names, on_pool = figure_names(line.get("test")), "test" in line and "clients" not in line
    found = {name: line["test"].get(name) if on_pool else (line.get(name) or {}).get("mean") for name in names}
    figures = {name: figure for name, figure in found.items() if figure is not None}
    of = "test " if on_pool else ""
    return "".join(
        f"  {of}{name} {in_digits(figure)}" for name, figure in figures.items() if len(figures) == len(names)
    )
