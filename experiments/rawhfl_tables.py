"""The RawHFL paper's Tables II to IV: accuracy and energy of every algorithm.

``python experiments/rawhfl_tables.py FOLDER [--tables 2 3 4] [--seeds 0 1 2] [--rows NAME ...] [--only-print]`` makes
every run that FOLDER does not have yet, one after the other, goes on with those that were interrupted, and prints the
tables of what is finished: mean and standard deviation over seeds, beside the paper's figures. Several processes can
share the work: give them other tables, seeds or rows.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean, pstdev

from rich.progress import track

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
    subprocess.run([sys.executable, "-m", "app", *arguments], check=True, stdout=subprocess.DEVNULL)


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


if __name__ == "__main__":
    main()
