"""The RawHFL paper's Tables II to IV: accuracy and energy of every algorithm.

``python -m experiments.rawhfl_tables FOLDER [--tables 2 3 4] [--seeds 0 1 2]`` prints the tables of the runs that
sweeps have made in FOLDER/table2, FOLDER/table3 and FOLDER/table4, one for each table, by its settings file and that of
the rows (``sweeps/rawhfl-rows.toml``): mean and standard deviation over seeds, and the accuracy's standard deviation
over clients (the mean over seeds), beside the paper's figures. For each table it draws FOLDER/table2.png and so on,
like the paper's Figs. 9 and 10, from the first of the seeds.

``--csv PATH`` writes a line for each run, and ``--record PATH`` prints such lines instead; docs/data/rawhfl-runs.csv
has those of docs/video-caching.md.
"""

import argparse
import csv
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from espalier.app.ground.errors import UserError, bad_value
from espalier.app.ground.pictures import PALETTE, save_plot
from experiments.records import run_script


class Published(NamedTuple):
    """A row of the paper's Tables II, III and IV: mean accuracy, its +- as a spread over clients, and joules.

    That the +- is over clients is our reading: the paper does not say. The joules are the same in all three tables.
    """

    accuracy: tuple[float, float, float]
    over_clients: tuple[float, float, float]
    joules: int | None


PAPER = {
    "RawHFL Z=2": Published((0.2994, 0.7013, 0.4485), (0.0143, 0.0142, 0.2072), 1508),
    "RawHFL Z=4": Published((0.2998, 0.7013, 0.4485), (0.0146, 0.0142, 0.2075), 2848),
    "RawHFL Z=6": Published((0.2991, 0.7013, 0.4484), (0.0155, 0.0142, 0.2075), 4138),
    "Central-SGD": Published((0.3947, 0.7013, 0.5180), (0.0856, 0.0141, 0.1558), None),
    "H-FedAvg-M1": Published((0.0663, 0.1289, 0.0791), (0.0352, 0.0309, 0.0542), 490),
    "H-FedAvg-M2": Published((0.1591, 0.3483, 0.1918), (0.0906, 0.0636, 0.1142), 11227),
    "H-FedAvg-UB": Published((0.2977, 0.7013, 0.4468), (0.0161, 0.0142, 0.2069), 13836),
    "FedAvg-UB": Published((0.2964, 0.7013, 0.4457), (0.0170, 0.0142, 0.2061), 3456),
    "Top-Popular": Published((0.0978, 0.0591, 0.0916), (0.0395, 0.0322, 0.0386), None),
}


class Run(NamedTuple):
    """Which run: a table of the paper, a row of it, a seed."""

    table: int
    row: str
    seed: int


class Result(NamedTuple):
    """What came of it: mean accuracy over clients, joules of all of them where it counts any, accuracy's std over them.

    And what made it; records of before it was recorded have neither that nor the std.
    """

    accuracy: float
    joules: float | None
    over_clients: float | None = None
    commit: str = ""
    machine: str = ""


def read_record(record: Path) -> dict[Run, Result]:
    """Return the finished runs; UserError for a file that has none of their lines."""
    if not record.exists():
        return {}
    with record.open(encoding="utf-8", newline="") as file:
        try:
            return {
                Run(int(line["table"]), line["row"], int(line["seed"])): Result(
                    float(line["accuracy"]),
                    _number(line["joules"]),
                    _number(line.get("over_clients")),
                    line.get("commit") or "",
                    line.get("machine") or "",
                )
                for line in csv.DictReader(file)
            }
        except (KeyError, TypeError, ValueError, csv.Error):
            raise bad_value("--record", str(record), "a CSV file as this script writes it, or a new one") from None


def _number(text: str | None) -> float | None:
    return float(text) if text else None


def write_record(record: Path, finished: Mapping[Run, Result]) -> None:
    """Write the finished runs."""
    with record.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*Run._fields, *Result._fields])
        writer.writerows([*run, *result] for run, result in finished.items())


def read_sweep(parent: Path, table: int) -> dict[Run, tuple[Result, Path]]:
    """Return the runs that are over of a table's sweep, each with its results folder.

    Raises
    ------
    UserError
        If the sweep has not the paper's rows as its cases.
    """
    sweep = parent / f"table{table}"
    path, finished = sweep / "runs.csv", {}
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            if line.get("case") not in PAPER:
                raise UserError(f"{path}: allowed is a sweep with experiments/sweeps/rawhfl-rows.toml")
            folder = sweep / Path(line["folder"]).name  # wherever the sweep was made
            result = Result(float(line["accuracy"]), _number(line.get("energy_joules")), *_of_folder(folder))
            finished[Run(table, line["case"], int(line["seed"]))] = result, folder
    return finished


def _of_folder(folder: Path) -> tuple[float, str, str]:
    """Return the accuracy's standard deviation over clients of a run that is over, its commit and its machine."""
    summary, made_by = (json.loads((folder / name).read_text("utf-8")) for name in ("summary.json", "made-by.json"))
    return summary["global"]["accuracy"]["std"], made_by[-1]["commit"], made_by[-1]["machine"]


def print_table(finished: Mapping[Run, Result], table: int, seeds: list[int]) -> None:
    """Print a table of the runs that are finished."""
    print(f"\nTable {'I' * table if table < 4 else 'IV'}")
    print(
        f"{'':<12}{'runs':>5}{'accuracy':>18}{'paper':>9}{'over clients':>14}{'paper':>9}{'energy [J]':>22}{'paper':>8}"
    )
    for row, published in PAPER.items():
        results = [finished[run] for seed in seeds if (run := Run(table, row, seed)) in finished]
        if not results:
            continue
        accuracy = [result.accuracy for result in results]
        over_clients = [result.over_clients for result in results if result.over_clients is not None]
        joules = [result.joules for result in results if result.joules is not None]
        print(
            f"{row:<12}{len(results):>5}{spread(accuracy, 4):>18}{published.accuracy[table - 2]:>9.4f}"
            f"{f'{fmean(over_clients):.4f}' if over_clients else '-':>14}{published.over_clients[table - 2]:>9.4f}"
            f"{spread(joules, 2) if joules else '-':>22}{published.joules or '-':>8}"
        )


def spread(values: Sequence[float], digits: int) -> str:
    """Return mean and standard deviation, of one value that value alone."""
    mean = f"{fmean(values):,.{digits}f}"
    return f"{mean} +- {pstdev(values):.{digits}f}" if len(values) > 1 else mean + " " * (4 + 2 + digits)


def evaluated_lines(folder: Path) -> list[dict[str, Any]]:
    """Return the global lines of a run that have an evaluation."""
    every = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line for line in every if line["scope"] == "global" and "clients" in line]


def draw_table(path: Path, table: int, folders: Mapping[str, Path], seed: int) -> None:
    """Draw accuracy over rounds and joules, and top-M accuracy, of runs whose results folders are given by row."""
    runs = {row: evaluated_lines(folders[row]) for row in PAPER if row in folders}
    save_plot(path, f"Table {table}, seed {seed}", _draw_runs, runs, width=12.0, height=4.2, columns=3)
    print(path)


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


def main() -> None:
    """Print and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("results/tables"), help="default: %(default)s")
    parser.add_argument("--tables", type=int, nargs="+", default=[2, 3, 4], choices=[2, 3, 4])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--csv", type=Path, help="default: none is written")
    parser.add_argument("--record", type=Path, help="lines to print instead of FOLDER's runs")
    given = parser.parse_args()
    swept = {run: own for table in given.tables for run, own in read_sweep(given.folder.absolute(), table).items()}
    finished = read_record(given.record) if given.record else {run: result for run, (result, _) in swept.items()}
    if not finished:
        sys.exit(f"error: {given.record or given.folder}: holds no run that is over; allowed are sweeps' folders in it")
    for table in given.tables:
        print_table(finished, table, given.seeds)
        seed = given.seeds[0]
        folders = {run.row: folder for run, (_, folder) in swept.items() if (run.table, run.seed) == (table, seed)}
        if folders and not given.record:
            draw_table(given.folder / f"table{table}.png", table, folders, seed)
    if given.csv:
        write_record(given.csv, finished)


if __name__ == "__main__":
    run_script(main)
