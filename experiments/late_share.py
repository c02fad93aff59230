"""How many results are late, and what that costs, where plans see channels with an error, with and without margin.

``python -m experiments.late_share --csv PATH`` trains ``rawhfl`` for 48 clients in 4 cells with a deadline of 150 s, as
in the paper's Table III but with fewer and longer steps, for each planning error and way to plan, and prints a table
over the seeds. A row is written as soon as a run is over, with its settings, the commit and the machine; what has a row
is not made again.
"""

from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from espalier.app.config.parse import parse_config, read_toml
from espalier.app.ground.logs import quiet_flower
from espalier.app.reports.folder import ResultsFolder
from espalier.app.reports.made_by import maker
from espalier.app.reports.progress import BarProgress
from espalier.app.run.run import engine_of, run
from experiments.records import completed, run_script

TABLE_3 = Path(__file__).parent / "rawhfl-table3.toml"
# A fifth of the paper's local steps, each five times as long: as good a model, sooner.
SHORTER = {"plan.max-local-rounds": 10, "learning-rate": 0.05}
SETTING = {"engine": "in-process", "global-rounds": 20, "report.evaluate-every": 0, **SHORTER}
AS_SEEN, MARGIN, LATE_SHARE = "as seen", "plan.margin = 0.2", "plan.late-share = 0.05"
WAYS: dict[str, dict[str, Any]] = {
    AS_SEEN: {},
    MARGIN: {"plan.margin": 0.2},
    LATE_SHARE: {"plan.late-share": 0.05},
}
ERRORS_DB = (0.1, 1.0, 3.0)
SEEDS = (0, 1)
COLUMNS = {
    "error_db": float,
    "way": str,
    "seed": int,
    "rounds": int,
    "results": int,
    "late": int,
    "accuracy": float,
    "joules": float,
    "commit": str,
    "machine": str,
}

Row = dict[str, Any]
What = tuple[float, str, int]


def runs(seeds: Sequence[int]) -> Iterator[What]:
    """Yield the runs: planning error in dB, way to plan, seed."""
    for seed in seeds:
        yield 0.0, AS_SEEN, seed
        # The margin needed depends on the error; this one is for 1 dB.
        yield from ((error, way, seed) for error in ERRORS_DB for way in WAYS if way != MARGIN or error == 1.0)


def row_of_run(error_db: float, way: str, seed: int, **changes: Any) -> Row:
    """Make a run and return its row; `joules` are those of a selected client in an edge round."""
    own = {"radio.planning-error-db": error_db, "seed": seed, **WAYS[way]}
    with TemporaryDirectory() as name, redirect_stdout(StringIO()):
        folder = Path(name) / "run"
        config = parse_config({**read_toml(TABLE_3), **SETTING, **own, **changes, "output-dir": str(folder)})
        with engine_of(config) as engine:
            run(config, engine, BarProgress(Console(file=StringIO())), Path(name))
        results = ResultsFolder(folder)
        summary = results.read_json("summary.json")
        plans = [plan for line in results.read_metrics() if line["scope"] == "edge" for plan in line["plans"]]
    return {
        "error_db": error_db,
        "way": way,
        "seed": seed,
        "rounds": config.federation.global_rounds,
        "results": sum(len(plan["selected"]) for plan in plans),
        "late": summary["late"],
        "accuracy": round(summary["global"]["accuracy"]["mean"], 4),
        "joules": float(f"{summary['energy_joules']['per_client_round']:.5g}"),
        "commit": maker()["commit"],
        "machine": maker()["machine"],
    }


def table(rows: Sequence[Row]) -> list[str]:
    """Return the lines of the docs' table: late results of all seeds, and means over the seeds."""
    lines = [
        "| error | plans | late results | accuracy | J per client and edge round |",
        "|---|---|---|---|---|",
    ]
    for error_db, way in dict.fromkeys((row["error_db"], row["way"]) for row in rows):
        own = [row for row in rows if (row["error_db"], row["way"]) == (error_db, way)]
        late, results = (sum(row[key] for row in own) for key in ("late", "results"))
        accuracy, joules = (fmean(row[key] for row in own) for key in ("accuracy", "joules"))
        named = way if way == AS_SEEN else f"`{way}`"
        lines.append(
            f"| {error_db:g} dB | {named} | {late} of {results}, {late / results:.1%} | {accuracy:.3f} | {joules:.5f} |"
        )
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that have no rows, and print the table."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    given = parser.parse_args(arguments)
    quiet_flower()
    rows = completed(
        given.csv,
        COLUMNS,
        runs(given.seeds),
        lambda row: (row["error_db"], row["way"], row["seed"]),
        lambda what: [row_of_run(*what)],
    )
    print("\n".join(table(rows)))


if __name__ == "__main__":
    run_script(main)
