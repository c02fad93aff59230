"""The RawHFL paper's Tables II to IV: accuracy and energy of every algorithm.

``python experiments/rawhfl_tables.py FOLDER [--tables 2 3 4] [--seeds 0 1 2] [--rows NAME ...] [--only-print]`` makes
every run that is not finished yet, one after the other, goes on with those that were interrupted, and prints the
tables of what is finished: mean and standard deviation over seeds, beside the paper's figures. For each table it draws
FOLDER/table2.png and so on, like the paper's Figs. 9 and 10, from the first of the seeds. Several processes can share
the work: give them other tables, seeds or rows.

A finished run is a line in FOLDER/runs.csv, or in the file given by ``--record``, and is not made again;
docs/rawhfl-runs.csv records runs of docs/video-caching.md.
"""

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from rich.progress import track

from espalier.app.reports.plots import PALETTE, save_plot

HERE = Path(__file__).parent

# By row: what differs from the table's TOML file.
ROWS = {
    "RawHFL Z=4": {"plan.selected-per-edge": 4},
    "Top-Popular": {"algorithm": "top-popular", "report.evaluate-every": 0},
    "Central-SGD": {"algorithm": "centralised"},
    "H-FedAvg-M1": {"algorithm": "h-fedavg-m1"},
    "FedAvg-UB": {"algorithm": "fedavg-ub"},
    "RawHFL Z=2": {"plan.selected-per-edge": 2},
    "H-FedAvg-M2": {"algorithm": "h-fedavg-m2"},
    "H-FedAvg-UB": {"algorithm": "h-fedavg-ub"},
    "RawHFL Z=6": {"plan.selected-per-edge": 6},
}
# The paper's mean accuracy over clients in Tables II, III and IV, and its joules, which are the same in all three.
PAPER = {
    "RawHFL Z=2": (0.2994, 0.7013, 0.4485, 1508),
    "RawHFL Z=4": (0.2998, 0.7013, 0.4485, 2848),
    "RawHFL Z=6": (0.2991, 0.7013, 0.4484, 4138),
    "Central-SGD": (0.3947, 0.7013, 0.5180, None),
    "H-FedAvg-M1": (0.0663, 0.1289, 0.0791, 490),
    "H-FedAvg-M2": (0.1591, 0.3483, 0.1918, 11227),
    "H-FedAvg-UB": (0.2977, 0.7013, 0.4468, 13836),
    "FedAvg-UB": (0.2964, 0.7013, 0.4457, 3456),
    "Top-Popular": (0.0978, 0.0591, 0.0916, None),
}


class Run(NamedTuple):
    """Which run: a table of the paper, a row of it, a seed."""

    table: int
    row: str
    seed: int


class Result(NamedTuple):
    """What came of it: mean accuracy over clients, and joules of all of them where it counts any."""

    accuracy: float
    joules: float | None


def read_record(record: Path) -> dict[Run, Result]:
    """Return the finished runs."""
    if not record.exists():
        return {}
    with record.open(encoding="utf-8", newline="") as file:
        return {
            Run(int(line["table"]), line["row"], int(line["seed"])): Result(
                float(line["accuracy"]), float(line["joules"]) if line["joules"] else None
            )
            for line in csv.DictReader(file)
        }


def add_to_record(record: Path, run: Run, result: Result) -> None:
    """Add a finished run."""
    record.parent.mkdir(parents=True, exist_ok=True)
    with record.open("a", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if file.tell() == 0:
            writer.writerow([*Run._fields, *Result._fields])
        writer.writerow([*run, *result])


def finish(run: Run, folder: Path) -> Result | None:
    """Make a run, or what is left of it, and return its result, None if it failed."""
    if not (folder / "summary.json").exists():
        values = [f"{key}={value}" for key, value in (ROWS[run.row] | {"seed": run.seed}).items()]
        fresh = [str(HERE / f"rawhfl-table{run.table}.toml"), *values, f"output-dir={folder}"]
        arguments = [f"resume={folder}"] if (folder / "config.json").exists() else fresh
        command = [sys.executable, "-m", "espalier.app", *arguments]
        if subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode:
            print(f"{folder}: the run failed, see above", file=sys.stderr)
            return None
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    joules = summary["energy_joules"]["total"] if summary.get("energy_joules") else None
    return Result(summary["global"]["accuracy"]["mean"], joules)


def folder_of(parent: Path, run: Run) -> Path:
    """Return where a run's results are."""
    return parent / f"table{run.table}" / f"{run.row.lower().replace(' ', '-').replace('=', '')}-seed{run.seed}"


def print_table(finished: Mapping[Run, Result], table: int, seeds: list[int]) -> None:
    """Print a table of the runs that are finished."""
    print(f"\nTable {'I' * table if table < 4 else 'IV'}")
    print(f"{'':<12}{'runs':>5}{'accuracy':>18}{'paper':>9}{'energy [J]':>22}{'paper':>8}")
    for row, published in PAPER.items():
        results = [finished[run] for seed in seeds if (run := Run(table, row, seed)) in finished]
        if not results:
            continue
        accuracy = [result.accuracy for result in results]
        joules = [result.joules for result in results if result.joules is not None]
        print(
            f"{row:<12}{len(results):>5}{spread(accuracy, 4):>18}{published[table - 2]:>9.4f}"
            f"{spread(joules, 2) if joules else '-':>22}{published[3] or '-':>8}"
        )


def spread(values: Sequence[float], digits: int) -> str:
    """Return mean and standard deviation, of one value that value alone."""
    mean = f"{fmean(values):,.{digits}f}"
    return f"{mean} +- {pstdev(values):.{digits}f}" if len(values) > 1 else mean + " " * (4 + 2 + digits)


def evaluated_lines(folder: Path) -> list[dict[str, Any]]:
    """Return the global lines of a run that have an evaluation."""
    every = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line for line in every if line["scope"] == "global" and "clients" in line]


def draw_table(parent: Path, table: int, seed: int) -> None:
    """Draw accuracy over rounds and joules, and top-M accuracy, of the runs that are finished."""
    runs = {}
    for row in PAPER:
        folder = folder_of(parent, Run(table, row, seed))
        if (folder / "summary.json").exists():
            runs[row] = evaluated_lines(folder)
    if runs:
        name = parent / f"table{table}.png"
        save_plot(name, f"Table {table}, seed {seed}", _draw_runs, runs, width=12.0, height=4.2, columns=3)
        print(name)


def _draw_runs(axes: list[Axes], runs: dict[str, list[dict[str, Any]]]) -> None:
    for color, (row, lines) in zip(PALETTE, runs.items(), strict=False):
        accuracy = [line["accuracy"]["mean"] for line in lines]
        if len(lines) > 1:
            axes[0].plot([line["round"] for line in lines], accuracy, color=color, label=row)
        if all("energy_joules" in line and line["energy_joules"]["so_far"] > 0 for line in lines):
            axes[1].plot([line["energy_joules"]["so_far"] for line in lines], accuracy, color=color, label=row)
        clients = lines[-1]["clients"].values()
        top = [fmean(client[f"top-{m}"] for client in clients) for m in range(1, 11)]
        axes[2].plot(range(1, 11), top, color=color, marker="o", ms=3, label=row)
    axes[0].set(xlabel="global round", ylabel="mean test accuracy of the clients")
    axes[1].set(xlabel="joules so far, all clients", xscale="log")
    axes[2].set(xlabel="M", ylabel="top-M accuracy")
    axes[2].legend(frameon=False, fontsize=8)


def main() -> int:
    """Run and print; return 1 if a run failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tables", type=int, nargs="+", default=[2, 3, 4], choices=[2, 3, 4])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--only-print", action="store_true")
    parser.add_argument("--record", type=Path, help="default: FOLDER/runs.csv")
    given = parser.parse_args()
    parent = given.folder.absolute()
    record = given.record or parent / "runs.csv"
    failed = False
    if not given.only_print:
        todo = [Run(table, row, seed) for seed in given.seeds for row in given.rows for table in given.tables]
        for run in track(todo, "runs"):
            if run in read_record(record):
                continue
            if result := finish(run, folder_of(parent, run)):
                add_to_record(record, run, result)
            else:
                failed = True
    finished = read_record(record)
    for table in given.tables:
        print_table(finished, table, given.seeds)
        draw_table(parent, table, given.seeds[0])
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
