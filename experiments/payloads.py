"""What smaller payloads of a stream cost in accuracy, and save in bytes.

``python -m experiments.payloads`` trains HSFL on digits through streams, with each payload and seed, and prints the
final test accuracies and the bytes between clients and edges. ``--csv PATH`` writes a row for each run as soon as it is
over, with its setting, the commit and the machine; runs that have a row are not made again.
"""

from argparse import ArgumentParser
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

from espalier.app.ground.logs import quiet_flower
from espalier.app.reports.made_by import maker
from espalier.app.settings.sections import StreamSettings
from experiments.records import completed, run_script
from experiments.runs import summary_of_run

SETTINGS: dict[str, dict[str, Any]] = {
    # Every sample comes twice in an edge round: error feedback has something to add.
    "hsfl": {"algorithm": "hsfl", "alpha": 0.1, "global-rounds": 15, "local-epochs": 2},
}
THROUGH_STREAMS = {
    "engine": "in-process",
    "split.transport": "stream",
    "fine-tune.steps": 0,
    "report.evaluate-every": 0,
}
PAYLOADS: tuple[str, ...] = get_args(StreamSettings.model_fields["payload"].annotation)
EXACT = "float32"
SEEDS = (0, 1, 2)
COLUMNS = {
    "setting": str,
    "payload": str,
    "seed": int,
    "accuracy": float,
    "uplink_bytes": int,
    "downlink_bytes": int,
    "commit": str,
    "machine": str,
}
MB = 1e6

Row = dict[str, Any]


def row_of_run(setting: str, payload: str, seed: int, **changes: Any) -> Row:
    """Train through streams; return the accuracy on the test pool, and the bytes of training at the edges."""
    own = {**THROUGH_STREAMS, **SETTINGS[setting], "stream.payload": payload, "seed": seed, **changes}
    summary = summary_of_run(own)
    return {
        "setting": setting,
        "payload": payload,
        "seed": seed,
        "accuracy": round(summary["test"]["accuracy"], 4),
        "uplink_bytes": summary["bytes"]["uplink"]["edge"],
        "downlink_bytes": summary["bytes"]["downlink"]["edge"],
    }


def table(setting: str, rows: Sequence[Row]) -> list[tuple[str, float, float, float, float, float, float]]:
    """Return by payload, over its seeds: accuracy, mean, least and most, mean bytes up and down, and their share.

    The share is of the bytes that float32 sends with the same seeds.
    """
    own = [row for row in rows if row["setting"] == setting]
    sums = {(row["payload"], row["seed"]): row["uplink_bytes"] + row["downlink_bytes"] for row in own}
    lines = []
    for payload in PAYLOADS:
        runs = [row for row in own if row["payload"] == payload and (EXACT, row["seed"]) in sums]
        if not runs:
            continue
        accuracies = [row["accuracy"] for row in runs]
        up, down = (fmean(row[f"{direction}_bytes"] for row in runs) for direction in ("uplink", "downlink"))
        share = fmean(sums[payload, row["seed"]] / sums[EXACT, row["seed"]] for row in runs)
        lines.append((payload, fmean(accuracies), min(accuracies), max(accuracies), up, down, share))
    return lines


def print_table(setting: str, rows: Sequence[Row]) -> None:
    """Print the table as it is in the docs."""
    print("| `stream.payload` | accuracy | least | most | up, MB | down, MB | of float32's bytes |")
    print("|---|---|---|---|---|---|---|")
    for payload, mean, least, most, up, down, share in table(setting, rows):
        accuracies = " | ".join(f"{value:.4f}" for value in (mean, least, most))
        print(f'| `"{payload}"` | {accuracies} | {up / MB:.2f} | {down / MB:.2f} | {100 * share:.1f} % |')


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that have no row, and print the table."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--setting", choices=tuple(SETTINGS), default="hsfl")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args(arguments)
    quiet_flower()
    made_by = {key: maker()[key] for key in ("commit", "machine")}
    rows = completed(
        given.csv,
        COLUMNS,
        [(given.setting, payload, seed) for seed, payload in product(given.seeds, PAYLOADS)],
        lambda row: (row["setting"], row["payload"], row["seed"]),
        lambda case: [{**row_of_run(*case), **made_by}],
    )
    print_table(given.setting, rows)


if __name__ == "__main__":
    run_script(main)
