"""What the split algorithms cost: bytes, memory and arithmetic of a round, beside the accuracy.

``python -m experiments.split_ledger`` trains each of them on digits in two tiers, with the same clients and
mini-batches, and prints a table. ``--csv PATH`` writes a row for each run as soon as it is over, with the commit and
the machine; algorithms that have a row are not run again.
"""

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from espalier.app.algorithms.registry import ALGORITHMS
from espalier.app.ground.logs import quiet_flower
from espalier.app.reports.made_by import maker
from experiments.records import append_rows, read_rows, run_script
from experiments.runs import summary_of_run

ALL = tuple(name for name, algorithm in ALGORITHMS.items() if algorithm.splits)
SETTINGS: dict[str, Any] = {
    **{"engine": "in-process", "num-clients": 8, "num-edges": 2, "edge-rounds": 1, "global-rounds": 10, "alpha": 1.0},
    **{"local-epochs": 1, "batches-per-epoch": 10, "batch-size": 32, "learning-rate": 0.1, "fine-tune.steps": 0},
    **{"report.evaluate-every": 0, "report.ledger": True},
}
LOCAL_LOSSES = {"split.upload-every": 5}  # where no gradient comes back
COLUMNS = {
    "algorithm": str,
    "uplink_bytes": int,
    "downlink_bytes": int,
    "client_peak_bytes": int,
    "edge_peak_bytes": int,
    "client_flops": int,
    "accuracy": float,
    "commit": str,
    "machine": str,
}

Row = dict[str, Any]


def row_of_run(algorithm: str, **changes: Any) -> Row:
    """Train; return bytes of a round between clients and edges, the ledger, and the accuracy on the test pool."""
    own = LOCAL_LOSSES if ALGORITHMS[algorithm].auxiliary else {}
    settings = {**SETTINGS, **own, **changes, "algorithm": algorithm}
    summary = summary_of_run(settings)
    sent, ledger = summary["bytes"], summary["ledger"]
    return {
        "algorithm": algorithm,
        "uplink_bytes": round(sent["uplink"]["edge"] / settings["global-rounds"]),
        "downlink_bytes": round(sent["downlink"]["edge"] / settings["global-rounds"]),
        **{name: ledger[name] for name in ("client_peak_bytes", "edge_peak_bytes", "client_flops")},
        "accuracy": round(summary["test"]["accuracy"], 4),
    }


def print_table(rows: Sequence[Row]) -> None:
    """Print the table as it is in the docs."""
    print("| algorithm | up, kB | down, kB | client's memory, kB | edge's memory, kB | client's MFLOP | accuracy |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        kilobytes = (f"{row[name] / 1e3:,.0f}" for name in list(COLUMNS)[1:5])
        flops = row["client_flops"] / 1e6
        print(f"| `{row['algorithm']}` | {' | '.join(kilobytes)} | {flops:.1f} | {row['accuracy']:.4f} |")


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that have no row, and print the table."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args(arguments)
    quiet_flower()
    made_by = {key: maker()[key] for key in ("commit", "machine")}
    rows = {row["algorithm"]: row for row in (read_rows(given.csv, COLUMNS) if given.csv else [])}
    for algorithm in track([name for name in ALL if name not in rows], console=Console(stderr=True)):
        rows[algorithm] = {**row_of_run(algorithm), **made_by}
        if given.csv:
            append_rows(given.csv, COLUMNS, [rows[algorithm]])
    print_table([rows[name] for name in ALL])


if __name__ == "__main__":
    run_script(main)
