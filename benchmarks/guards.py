"""How many replies of honest clients the guard leaves out.

``python -m benchmarks.guards --csv docs/data/honest-clients.csv`` trains 150 global rounds of honest clients in each of
`WORLDS`, by each of `ALGORITHMS`, with five seeds, and prints how many of their replies the defaults left out, and how
many a tight bound leaves out (`TIGHT`, one seed). Runs that have a row in the file are not made again. What liars cost,
with each defence: ``python -m experiments.robustness``.
"""

import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from io import StringIO
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

from espalier.app.config.parse import parse_config
from espalier.app.engines.in_process import InProcess
from espalier.app.ground.logs import quiet_flower
from espalier.app.reports.folder import ResultsFolder
from espalier.app.reports.made_by import maker
from espalier.app.reports.progress import BarProgress
from espalier.app.run.run import run
from experiments.records import append_rows, read_rows, run_script

SETTING = {
    "engine": "in-process",
    "num-clients": 8,
    "global-rounds": 150,
    "report.evaluate-every": 0,
    "report.plots": False,
}
WORLDS: Mapping[str, Mapping[str, Any]] = {
    "digits, Dir(0.1)": {"alpha": 0.1},
    "digits, Dir(0.5)": {"alpha": 0.5},
    "BatchNorm": {"task": "benchmarks.honest_worlds:Norm"},
    "raw features in BatchNorm": {"task": "benchmarks.honest_worlds:Units"},
    "one size 200 times": {"task": "benchmarks.honest_worlds:Sizes"},
    "one spread 4 times": {"task": "benchmarks.honest_worlds:Spreads"},
    "digits, Dir(0.1), 10 epochs": {"alpha": 0.1, "local-epochs": 10},
    "digits, Dir(0.5), 10 epochs": {"alpha": 0.5, "local-epochs": 10},
}
ALGORITHMS: Mapping[str, Mapping[str, Any]] = {
    "fedavg": {"algorithm": "fedavg"},
    "h-fedavg": {"algorithm": "h-fedavg"},
    "hsfl": {"algorithm": "hsfl"},
    "phsfl": {"algorithm": "phsfl"},
    "rawhfl": {"algorithm": "rawhfl"},
    "fedbuff": {"algorithm": "h-fedavg", "async.mode": "fedbuff"},
}
GUARDS: Mapping[str, Mapping[str, Any]] = {
    "defaults": {},
    "tight": {"guard.update-norm": 10.0, "guard.activation-norm": 5.0},
}
SEEDS = range(5)
COLUMNS = {"world": str, "algorithm": str, "guard": str, "seed": int, "left_out": int, "commit": str, "machine": str}

What = tuple[str, str, str, int]


def runs() -> Iterator[What]:
    """Return world, algorithm, guard and seed of every run, seed by seed; ten epochs are for FedAvg alone."""
    for seed, guard, (world, settings), algorithm in product(SEEDS, GUARDS, WORLDS.items(), ALGORITHMS):
        if (guard == "defaults" or seed == 0) and (algorithm == "fedavg" or "local-epochs" not in settings):
            yield world, algorithm, guard, seed


def left_out(world: str, algorithm: str, guard: str, seed: int) -> int:
    """Train honest clients, and return how many of their replies were left out, in training and evaluations."""
    config = parse_config({**SETTING, **WORLDS[world], **ALGORITHMS[algorithm], **GUARDS[guard], "seed": seed})
    engine = InProcess.open(config.federation.num_clients, config.as_dict(), config.seed, config.stack)
    with TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        path = run(config, engine, BarProgress(Console(file=StringIO())), Path(folder))
        return sum(int(line["failures"]) for line in ResultsFolder(path).read_metrics() if line["scope"] == "global")


def print_table(found: Mapping[What, int]) -> None:
    """Print a row per world, with a column per algorithm: replies left out by default, and in brackets by `TIGHT`."""
    print("| world | " + " | ".join(ALGORITHMS) + " |")
    print("|---|" + "---|" * len(ALGORITHMS))
    for world in WORLDS:
        cells = [cell(found, world, algorithm) for algorithm in ALGORITHMS]
        print(f"| {world} | " + " | ".join(cells) + " |")


def cell(found: Mapping[What, int], world: str, algorithm: str) -> str:
    """Return how many replies were left out over all seeds by default, and of one seed by a tight bound."""
    each = [[count for what, count in found.items() if what[:3] == (world, algorithm, guard)] for guard in GUARDS]
    return f"{sum(each[0])} ({sum(each[1])})" if all(each) else "-"


def main(arguments: Sequence[str]) -> int:
    """Run what has no row yet, and print the table."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args(arguments)
    quiet_flower()
    torch.set_num_threads(1)
    rows = read_rows(given.csv, COLUMNS) if given.csv else []
    found = {(row["world"], row["algorithm"], row["guard"], row["seed"]): row["left_out"] for row in rows}
    for what in track([one for one in runs() if one not in found], console=Console(stderr=True)):
        found[what] = left_out(*what)
        values = [*what, found[what], maker()["commit"], maker()["machine"]]
        if given.csv:
            append_rows(given.csv, COLUMNS, [dict(zip(COLUMNS, values, strict=True))])
    print_table(found)
    return 0


if __name__ == "__main__":
    run_script(lambda: main(sys.argv[1:]))
