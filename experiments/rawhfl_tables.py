"""The RawHFL paper's Tables II to IV: accuracy and energy of every algorithm.

``python experiments/rawhfl_tables.py FOLDER [--tables 2 3 4] [--seeds 0 1 2] [--rows NAME ...] [--only-print]`` makes
every run that FOLDER does not have yet, one after the other, goes on with those that were interrupted, and prints the
tables of what is finished: mean and standard deviation over seeds, beside the paper's figures. For each table it draws
FOLDER/table2.png and so on, like the paper's Figs. 9 and 10, from the first of the seeds. Several processes can share
the work: give them other tables, seeds or rows.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from matplotlib.axes import Axes
from rich.progress import track

from app.reports.plots import PALETTE, save_plot

HERE = Path(__file__).parent

# By row: what differs from the table's TOML file.
ROWS = {
    "RawHFL Z=4": {"selected-per-edge": 4},
    "Top-Popular": {"algorithm": "top-popular", "evaluate-every": 0},
    "Central-SGD": {"algorithm": "centralised"},
    "H-FedAvg-M1": {"algorithm": "h-fedavg-m1"},
    "FedAvg-UB": {"algorithm": "fedavg-ub"},
    "RawHFL Z=2": {"selected-per-edge": 2},
    "H-FedAvg-M2": {"algorithm": "h-fedavg-m2"},
    "H-FedAvg-UB": {"algorithm": "h-fedavg-ub"},
    "RawHFL Z=6": {"selected-per-edge": 6},
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


def run(folder: Path, table: int, row: str, seed: int) -> None:
    """Make one run, or what is left of it, unless it is finished."""
    if (folder / "summary.json").exists():
        return
    values = [f"{key}={value}" for key, value in (ROWS[row] | {"seed": seed}).items()]
    fresh = [str(HERE / f"rawhfl-table{table}.toml"), *values, f"output-dir={folder}"]
    arguments = [f"resume={folder}"] if (folder / "config.json").exists() else fresh
    if subprocess.run([sys.executable, "-m", "app", *arguments], check=False, stdout=subprocess.DEVNULL).returncode:
        print(f"{folder}: the run failed, see above", file=sys.stderr)


def folder_of(parent: Path, table: int, row: str, seed: int) -> Path:
    """Return where a run's results are."""
    return parent / f"table{table}" / f"{row.lower().replace(' ', '-').replace('=', '')}-seed{seed}"


def print_table(parent: Path, table: int, seeds: list[int]) -> None:
    """Print a table of the runs that are finished."""
    print(f"\nTable {'I' * table if table < 4 else 'IV'}")
    print(f"{'':<12}{'runs':>5}{'accuracy':>18}{'paper':>9}{'energy [J]':>22}{'paper':>8}")
    for row, published in PAPER.items():
        paths = [folder_of(parent, table, row, seed) / "summary.json" for seed in seeds]
        summaries = [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]
        if not summaries:
            continue
        accuracy = [summary["global"]["accuracy"]["mean"] for summary in summaries]
        joules = [s["energy_joules"]["total"] for s in summaries if s.get("energy_joules")]
        print(
            f"{row:<12}{len(summaries):>5}{f'{fmean(accuracy):.4f} +- {pstdev(accuracy):.4f}':>18}"
            f"{published[table - 2]:>9.4f}{f'{fmean(joules):,.2f} +- {pstdev(joules):.2f}' if joules else '-':>22}"
            f"{published[3] or '-':>8}"
        )


def evaluated_lines(folder: Path) -> list[dict[str, Any]]:
    """Return the global lines of a run that have an evaluation."""
    every = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line for line in every if line["scope"] == "global" and "clients" in line]


def draw_table(parent: Path, table: int, seed: int) -> None:
    """Draw accuracy over rounds and joules, and top-M accuracy, of the runs that are finished."""
    runs = {}
    for row in PAPER:
        folder = folder_of(parent, table, row, seed)
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


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tables", type=int, nargs="+", default=[2, 3, 4], choices=[2, 3, 4])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--only-print", action="store_true")
    given = parser.parse_args()
    parent = given.folder.absolute()
    if not given.only_print:
        todo = [(table, row, seed) for seed in given.seeds for row in given.rows for table in given.tables]
        for table, row, seed in track(todo, "runs"):
            run(folder_of(parent, table, row, seed), table, row, seed)
    for table in given.tables:
        print_table(parent, table, given.seeds)
        draw_table(parent, table, given.seeds[0])


if __name__ == "__main__":
    main()
