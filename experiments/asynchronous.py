"""How many simulated seconds a federation of slow and fast clients takes to an accuracy, waiting for all or for nobody.

``python -m experiments.asynchronous --csv PATH`` trains in each mode and with each seed until the global model is right
often enough at three evaluations in a row, and prints the simulated seconds of all that the CSV file has. It writes the
rows of a run, one for each evaluated round, as soon as the run is over, with the commit and the machine; runs that have
rows are not made again.
``--figure PATH`` draws accuracy over simulated seconds. ``--setting cifar10 --data-dir FOLDER`` takes CIFAR-10 as
folders of images, ``train/<class>/*`` and ``test/<class>/*``; ``--setting radio`` takes 48 clients in 4 cells of
RawHFL's radio world, whose plans say how long they take; ``--setting radio-cells`` gives each of them its own cell.
"""

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from rich.console import Console

from espalier.app.config.parse import parse_config
from espalier.app.ground.errors import Interrupted, UserError
from espalier.app.ground.logs import quiet_flower
from espalier.app.ground.pictures import PALETTE, save_plot
from espalier.app.reports.folder import ResultsFolder
from espalier.app.reports.made_by import maker
from espalier.app.reports.progress import BarProgress
from espalier.app.run.run import engine_of, run
from experiments.records import read_rows, run_script, write_rows

SETTINGS: dict[str, dict[str, Any]] = {
    "digits": {
        "algorithm": "fedavg",
        "num-clients": 20,
        "local-epochs": 2,
        "async.sigma": 1.0,
        "async.median-seconds": 60.0,
        "global-rounds": 400,
    },
    "cifar10": {
        "algorithm": "fedavg",
        "dataset": "image-folder",
        "model": "small-cnn",
        "partition": "dirichlet",
        "alpha": 0.5,
        "num-clients": 20,
        "local-epochs": 1,
        "batches-per-epoch": 10,
        "learning-rate": 0.05,
        "async.sigma": 1.0,
        "async.median-seconds": 60.0,
        "global-rounds": 800,
    },
    "radio": {
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
# The same, with a cell for each client: the cloud waits for clients, not for cells.
SETTINGS["radio-cells"] = SETTINGS["radio"] | {"num-edges": 48, "global-rounds": 300}
TARGETS = {"digits": 0.75, "cifar10": 0.45, "radio": 0.3, "radio-cells": 0.3}
IN_A_ROW = 3  # A model that is right often enough for once may not be soon after.
SYNCHRONOUS = "synchronous"
# A model is evaluated after about as many updates in each mode of a setting, so that none has more chances to be right
# often enough for once. In the radio world an edge's two rounds take about 6 s.
MODES: dict[str, dict[str, dict[str, Any]]] = {
    "digits": {
        SYNCHRONOUS: {"async.mode": "semi-synchronous"},
        "semi-synchronous": {
            "async.mode": "semi-synchronous",
            "async.deadline-seconds": 60.0,
            "report.evaluate-every": 2,
        },
        "fedbuff": {"async.mode": "fedbuff", "async.buffer-size": 5, "report.evaluate-every": 4},
    },
    "cifar10": {
        SYNCHRONOUS: {"async.mode": "semi-synchronous", "report.evaluate-every": 2},
        "semi-synchronous": {
            "async.mode": "semi-synchronous",
            "async.deadline-seconds": 60.0,
            "report.evaluate-every": 4,
        },
        "fedbuff": {"async.mode": "fedbuff", "async.buffer-size": 5, "report.evaluate-every": 8},
    },
    "radio": {
        SYNCHRONOUS: {"async.mode": "semi-synchronous"},
        "semi-synchronous": {"async.mode": "semi-synchronous", "async.deadline-seconds": 6.0},
        "fedbuff": {"async.mode": "fedbuff", "async.buffer-size": 2, "report.evaluate-every": 2},
    },
    "radio-cells": {
        SYNCHRONOUS: {"async.mode": "semi-synchronous"},
        "semi-synchronous": {
            "async.mode": "semi-synchronous",
            "async.deadline-seconds": 2.0,
            "report.evaluate-every": 2,
        },
        "fedbuff": {"async.mode": "fedbuff", "async.buffer-size": 12, "report.evaluate-every": 4},
    },
}
SEEDS = (0, 1, 2)
COLUMNS = {
    "setting": str,
    "mode": str,
    "seed": int,
    "round": int,
    "seconds": float,
    "accuracy": float,
    "commit": str,
    "machine": str,
}

Row = dict[str, Any]


class Line(NamedTuple):
    """A line of the table: a mode over the seeds.

    Parameters
    ----------
    setting, mode : str
        What was run.
    seconds : list[float]
        Simulated seconds until the target, by seed; empty where one did not get there.
    sooner : list[float]
        How many times sooner than the synchronous run of the same seed; empty where one of these did not get there.
    """

    setting: str
    mode: str
    seconds: list[float]
    sooner: list[float]

    def __str__(self) -> str:
        """Return it as it is in the docs."""
        return f"| {self.setting} | {self.mode} | {_spread(self.seconds, 0)} | {_spread(self.sooner, 2)} |"


def _spread(values: Sequence[float], decimals: int) -> str:
    """Return the cells of a mean and of the least and the most of some values, or of none."""
    if not values:
        return "- | -"
    mean, least, most = (f"{value:.{decimals}f}" for value in (fmean(values), min(values), max(values)))
    return f"{mean} | {least} to {most}"


class UntilAccurate(BarProgress):
    """Ends a run as soon as the global model is right often enough on the test pool, at `IN_A_ROW` evaluations.

    Attributes
    ----------
    is_reached : bool
        Whether it was.
    """

    def __init__(self, target: float) -> None:
        super().__init__(Console(file=StringIO()))
        self._target = target
        self._accuracies: list[float] = []
        self.is_reached = False

    def round_over(self, number: int, rounds: int, line: dict[str, Any]) -> None:
        """Interrupt the run after a round that is good enough."""
        if "test" in line:
            # To as many decimals as in the file.
            self._accuracies.append(round(line["test"]["accuracy"], 4))
            if position_of(self._target, self._accuracies) is not None:
                self.is_reached = True
                raise KeyboardInterrupt


def position_of(target: float, accuracies: Sequence[float]) -> int | None:
    """Return the first position at which the last `IN_A_ROW` accuracies are right often enough; None if there is none.

    Parameters
    ----------
    target : float
        The least that is right often enough.
    accuracies : Sequence[float]
        Of a run's evaluations, in order.
    """
    count = 0
    for position, accuracy in enumerate(accuracies):
        count = count + 1 if accuracy >= target else 0
        if count == IN_A_ROW:
            return position
    return None


def rows_of_run(setting: str, mode: str, seed: int, target: float, **changes: Any) -> list[Row]:
    """Train until the target, and return a row for each evaluated round."""
    settings = {"engine": "in-process", "seed": seed, **SETTINGS[setting], **MODES[setting][mode], **changes}
    with TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        path = Path(folder) / "run"
        config = parse_config({**settings, "output-dir": str(path)})
        progress = UntilAccurate(target)
        try:
            with engine_of(config) as engine:
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
            "seconds": round(line["simulated_seconds"], 3),
            "accuracy": round(line["test"]["accuracy"], 4),
            "commit": maker()["commit"],
            "machine": maker()["machine"],
        }
        for line in lines
    ]


def seconds_to(target: float, rows: Sequence[Row]) -> float | None:
    """Return the simulated seconds after which the model of a run was right often enough; None if it never was."""
    position = position_of(target, [row["accuracy"] for row in rows])
    return None if position is None else float(rows[position]["seconds"])


def table(rows: Sequence[Row]) -> list[Line]:
    """Return a line for each setting and mode that was run."""
    lines = []
    for setting in dict.fromkeys(row["setting"] for row in rows):
        waiting = _seconds_by_seed(setting, SYNCHRONOUS, rows)
        for mode in MODES[setting]:
            taken = _seconds_by_seed(setting, mode, rows)
            sooner = [slow / value for slow, value in zip(waiting, taken, strict=True)] if waiting and taken else []
            lines.append(Line(setting, mode, taken, sooner))
    return lines


def _seconds_by_seed(setting: str, mode: str, rows: Sequence[Row]) -> list[float]:
    """Return a mode's seconds by seed, of all seeds of the setting; none if one did not get there, or was not run."""
    of_setting = [row for row in rows if row["setting"] == setting]
    seconds = [
        seconds_to(TARGETS[setting], [row for row in of_setting if (row["mode"], row["seed"]) == (mode, seed)])
        for seed in sorted({row["seed"] for row in of_setting})
    ]
    known = [value for value in seconds if value is not None]
    return known if len(known) == len(seconds) else []


def table_lines(rows: Sequence[Row]) -> list[str]:
    """Return the table as it is in the docs."""
    return [
        "| setting | mode | seconds, mean | least to most | times sooner, mean | least to most |",
        "|---|---|---|---|---|---|",
        *map(str, table(rows)),
    ]


def draw(path: Path, rows: Sequence[Row]) -> None:
    """Draw accuracy over simulated seconds, a panel for each setting and a line for each run."""
    settings = list(dict.fromkeys(row["setting"] for row in rows))
    seeds = sorted({row["seed"] for row in rows})

    def fill(axes: Sequence[Axes], rows: Sequence[Row]) -> None:
        for ax in axes[len(settings) :]:
            ax.set_visible(False)
        for ax, setting in zip(axes, settings, strict=False):
            for color, mode in zip(PALETTE, MODES[setting], strict=False):
                for seed in seeds:
                    own = [row for row in rows if (row["setting"], row["mode"], row["seed"]) == (setting, mode, seed)]
                    times, figures = ([row[key] for row in own] for key in ("seconds", "accuracy"))
                    ax.plot(times, figures, color=color, lw=1.2, label=mode if seed == seeds[0] else None)
            ax.axhline(TARGETS[setting], color="black", lw=0.6, ls=":")
            ax.set(title=setting, xlabel="simulated seconds", ylabel="test accuracy", xscale="log")
        axes[0].legend(frameon=False, fontsize=8)

    title = f"accuracy over simulated seconds, {'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"
    columns = min(len(settings), 2)
    count = -(-len(settings) // columns)
    save_plot(path, title, fill, rows, width=5.0 * columns, height=3.4 * count, rows=count, columns=columns)


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that have no rows, and print the table of all."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--setting", choices=tuple(SETTINGS), default="digits")
    parser.add_argument("--data-dir", default="", help="of cifar10: a folder with train/<class>/* and test/<class>/*")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--figure", type=Path)
    given = parser.parse_args(arguments)
    quiet_flower()
    rows = read_rows(given.csv, COLUMNS) if given.csv else []
    done = {(row["setting"], row["mode"], row["seed"]) for row in rows}
    folder = {"data-dir": given.data_dir} if given.data_dir else {}
    try:
        for seed in given.seeds:
            for mode in MODES[given.setting]:
                if (given.setting, mode, seed) not in done:
                    rows += rows_of_run(given.setting, mode, seed, TARGETS[given.setting], **folder)
                    if given.csv:
                        write_rows(
                            given.csv, COLUMNS, sorted(rows, key=lambda row: list(SETTINGS).index(row["setting"]))
                        )
    except UserError as error:
        sys.exit(f"error: {error}")
    print("\n".join(table_lines(rows)))
    if given.figure:
        draw(given.figure, rows)


if __name__ == "__main__":
    run_script(main)
