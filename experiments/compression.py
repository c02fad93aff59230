"""What smaller updates cost in accuracy, and save in bytes.

``python -m experiments.compression`` trains h-fedavg on digits with each codec at both tiers, and prints the final test
accuracies and the bytes that went up. ``--csv PATH`` writes a row for each run as soon as it is over, with the commit
and the machine; runs that have a row are not made again.
"""

from argparse import ArgumentParser
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from espalier.app.ground.logs import quiet_flower
from espalier.app.reports.made_by import maker
from experiments.records import completed, run_script
from experiments.runs import summary_of_run

SETTING: dict[str, Any] = {
    "engine": "in-process",
    "algorithm": "h-fedavg",
    "global-rounds": 10,
    "alpha": 0.3,
    "report.evaluate-every": 0,
}
EXACT = "none"
CODECS = (
    *(EXACT, "float16", "int8"),
    *("qsgd(levels=7)", "qsgd(levels=1)"),
    *("top-k(share=0.1)", "top-k(share=0.01)"),
)
SEEDS = (0,)
COLUMNS = {
    "codec": str,
    "seed": int,
    "accuracy": float,
    "from_clients_bytes": int,
    "from_edges_bytes": int,
    "commit": str,
    "machine": str,
}
MB = 1e6

Row = dict[str, Any]


def row_of_run(codec: str, seed: int, **changes: Any) -> Row:
    """Train; return the accuracy on the test pool, and the bytes of training that went up at both tiers."""
    own = {**SETTING, "compress.client": codec, "compress.edge": codec, "seed": seed, **changes}
    summary = summary_of_run(own)
    return {
        "codec": codec,
        "seed": seed,
        "accuracy": round(summary["test"]["accuracy"], 4),
        "from_clients_bytes": summary["bytes"]["uplink"]["edge"],
        "from_edges_bytes": summary["bytes"]["uplink"]["cloud"],
    }


def print_table(rows: Sequence[Row]) -> None:
    """Print the table as it is in the docs."""
    sums = {(row["codec"], row["seed"]): row["from_clients_bytes"] + row["from_edges_bytes"] for row in rows}
    print("| codec at both tiers | seed | accuracy | from clients, MB | from edges, MB | of all bytes up |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        up = f"{row['from_clients_bytes'] / MB:.3f} | {row['from_edges_bytes'] / MB:.3f}"
        share = sums[row["codec"], row["seed"]] / sums[EXACT, row["seed"]]
        print(f'| `"{row["codec"]}"` | {row["seed"]} | {row["accuracy"]:.4f} | {up} | {100 * share:.1f} % |')


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that have no row, and print the table."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args(arguments)
    quiet_flower()
    made_by = {key: maker()[key] for key in ("commit", "machine")}
    rows = completed(
        given.csv,
        COLUMNS,
        [(codec, seed) for seed, codec in product(given.seeds, CODECS)],
        lambda row: (row["codec"], row["seed"]),
        lambda case: [{**row_of_run(*case), **made_by}],
    )
    print_table(rows)


if __name__ == "__main__":
    run_script(main)
