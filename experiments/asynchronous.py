"""How many simulated seconds a federation of slow and fast clients takes to an accuracy, waiting for all or for nobody.

``python experiments/asynchronous.py`` trains in each mode and with each seed until the global model is right often
enough, and prints the simulated seconds. ``--csv PATH`` writes a row for each evaluated round of each run as soon as
the run is over; runs that have rows are not made again. ``--figure PATH`` draws accuracy over simulated seconds.
``--setting video-caching`` takes 48 clients in 4 cells of the radio world, whose plans say how long they take.
"""

import csv
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from matplotlib.axes import Axes
from rich.console import Console

from espalier.app.config.parse import parse_config
from espalier.app.errors import Interrupted
from espalier.app.logs import quiet_flower
from espalier.app.reports.folder import ResultsFolder
from espalier.app.reports.plots import PALETTE, save_plot
from espalier.app.reports.progress import BarProgress
from espalier.app.run import run, simulation

SETTINGS: dict[str, dict[str, Any]] = {
    "digits": {
        "algorithm": "fedavg",
        "num-clients": 20,
        "local-epochs": 2,
        "async.sigma": 1.0,
        "async.median-seconds": 60.0,
        "global-rounds": 200,
    },
    "video-caching": {
        "algorithm": "h-fedavg-ub",
        "dataset": "video-caching",
        "num-clients": 48,
        "num-edges": 4,
        "edge-rounds": 2,
        "plan.max-local-rounds": 5,
        "batches-per-epoch": 10,
        "learning-rate": 0.05,
        "global-rounds": 100,
    },
}
TARGETS = {"digits": 0.75, "video-caching": 0.3}
SYNCHRONOUS = "synchronous"
# In video caching an edge's two rounds take about 6 s.
MODES: dict[str, dict[str, dict[str, Any]]] = {
    "digits": {
        SYNCHRONOUS: {"async.mode": "semi-synchronous"},
        "semi-synchronous": {"async.mode": "semi-synchronous", "async.deadline-seconds": 60.0},
        "fedbuff": {"async.mode": "fedbuff", "async.buffer-size": 5},
    },
    "video-caching": {
        SYNCHRONOUS: {"async.mode": "semi-synchronous"},
        "semi-synchronous": {"async.mode": "semi-synchronous", "async.deadline-seconds": 6.0},
        "fedbuff": {"async.mode": "fedbuff", "async.buffer-size": 2},
    },
}
SEEDS = (0, 1, 2)
COLUMNS = ("setting", "mode", "seed", "round", "simulated_seconds", "accuracy")

Row = dict[str, Any]


class UntilAccurate(BarProgress):
    """Ends a run as soon as the global model is right often enough on the test pool.

    Attributes
    ----------
    is_reached : bool
        Whether it was.
    """

    def __init__(self, target: float) -> None:
        super().__init__(Console(file=StringIO()))
        self._target = target
        self.is_reached = False

    def round_over(self, number: int, rounds: int, line: dict[str, Any]) -> None:
        """Interrupt the run after a round that is good enough."""
        if line.get("test", {}).get("accuracy", 0.0) >= self._target:
            self.is_reached = True
            raise KeyboardInterrupt


def rows_of_run(setting: str, mode: str, seed: int, target: float, **changes: Any) -> list[Row]:
    """Train until the target, and return a row for each evaluated round."""
    settings = {"engine": "in-process", "seed": seed, **SETTINGS[setting], **MODES[setting][mode], **changes}
    with TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        path = Path(folder) / "run"
        config = parse_config({**settings, "output-dir": str(path)})
        progress = UntilAccurate(target)
        try:
            with simulation(config) as engine:
                run(config, engine, progress, Path(folder))
        except Interrupted:
            if not progress.is_reached:
                raise
        lines = [line for line in ResultsFolder(path).read_metrics() if line["scope"] == "global" and "test" in line]
    return [
        {
            "setting": setting,
            "mode": mode,
            "seed": seed,
            "round": line["round"],
            "simulated_seconds": round(line["simulated_seconds"], 3),
            "accuracy": round(line["test"]["accuracy"], 4),
        }
        for line in lines
    ]


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a CSV file; none where there is no file."""
    if not path.exists():
        return []
    kinds = {"seed": int, "round": int, "simulated_seconds": float, "accuracy": float}
    with path.open(newline="", encoding="utf-8") as file:
        return [{key: kinds.get(key, str)(value) for key, value in row.items()} for row in csv.DictReader(file)]


def seconds_to(target: float, rows: Sequence[Row]) -> dict[tuple[str, str, int], float]:
    """Return, by setting, mode and seed, the simulated seconds after which a model was right often enough."""
    found: dict[tuple[str, str, int], float] = {}
    for row in rows:
        if row["accuracy"] >= target:
            found.setdefault((row["setting"], row["mode"], row["seed"]), row["simulated_seconds"])
    return found


def table(setting: str, rows: Sequence[Row]) -> list[tuple[str, float, float, float, float | None]]:
    """Return mode, mean, least and most seconds over the seeds, and how many times sooner than synchronous it was.

    The last is the mean over seeds of the ratio, None if the synchronous run did not get there with each; other modes
    that did not are left out.
    """
    seconds = seconds_to(TARGETS[setting], [row for row in rows if row["setting"] == setting])
    seeds = sorted({row["seed"] for row in rows if row["setting"] == setting})
    lines = []
    for mode in MODES[setting]:
        own = [seconds.get((setting, mode, seed)) for seed in seeds]
        known = [value for value in own if value is not None]
        if own and len(known) == len(own):
            waiting = [seconds.get((setting, SYNCHRONOUS, seed)) for seed in seeds]
            ratios = [slow / value for slow, value in zip(waiting, known, strict=True) if slow is not None]
            sooner = fmean(ratios) if len(ratios) == len(seeds) else None
            lines.append((mode, fmean(known), min(known), max(known), sooner))
    return lines


def draw(path: Path, setting: str, rows: Sequence[Row]) -> None:
    """Draw accuracy over simulated seconds, a line for each run."""
    seeds = sorted({row["seed"] for row in rows if row["setting"] == setting})

    def fill(axes: Sequence[Axes], rows: Sequence[Row]) -> None:
        (ax,) = axes
        for color, mode in zip(PALETTE, MODES[setting], strict=False):
            for seed in seeds:
                own = [row for row in rows if (row["mode"], row["seed"]) == (mode, seed)]
                times, figures = ([row[key] for row in own] for key in ("simulated_seconds", "accuracy"))
                ax.plot(times, figures, color=color, lw=1.2, label=mode if seed == seeds[0] else None)
        ax.axhline(TARGETS[setting], color="black", lw=0.6, ls=":")
        ax.set(xlabel="simulated seconds", ylabel="test accuracy", xscale="log")
        ax.legend(frameon=False, fontsize=8)

    title = f"{setting}, {'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"
    save_plot(path, title, fill, [row for row in rows if row["setting"] == setting], width=6.5)


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that have no rows, and print the table."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--setting", choices=tuple(SETTINGS), default="digits")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--figure", type=Path)
    given = parser.parse_args(arguments)
    quiet_flower()
    rows = read_rows(given.csv) if given.csv else []
    done = {(row["setting"], row["mode"], row["seed"]) for row in rows}
    for seed in given.seeds:
        for mode in MODES[given.setting]:
            if (given.setting, mode, seed) not in done:
                rows += rows_of_run(given.setting, mode, seed, TARGETS[given.setting])
                if given.csv:
                    write_rows(given.csv, rows)
    print_table(given.setting, rows)
    if given.figure:
        draw(given.figure, given.setting, rows)


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as a CSV file."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def print_table(setting: str, rows: Sequence[Row]) -> None:
    """Print the table as it is in the docs."""
    print("| mode | simulated seconds to it | least | most | times sooner |")
    print("|---|---|---|---|---|")
    for mode, mean, least, most, sooner in table(setting, rows):
        times = "-" if sooner is None else f"{sooner:.1f}"
        print(f"| {mode} | {mean:.0f} | {least:.0f} | {most:.0f} | {times} |")


if __name__ == "__main__":
    main()
