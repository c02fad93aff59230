"""MTGC's comparison (arXiv:2409.18448), reduced: rounds of drift corrections in two tiers to a stated accuracy.

``python -m experiments.mtgc FOLDER ... --csv PATH`` takes folders of finished runs, or of the sweep of
``mtgc-cifar10.toml`` with ``sweeps/mtgc-rows.toml``. Of each run that is not in the CSV yet it adds a line for every
round, and prints mean and standard deviation over seeds of all that the CSV has. Without a folder it only prints.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.recorded_rounds import RoundLine, Rows, by_run, mean_of, parser_of, rounds_with
from experiments.records import run_script

HERE = Path(__file__).parent
SETTINGS = HERE / "mtgc-cifar10.toml"
ROWS = Rows(SETTINGS, HERE / "sweeps/mtgc-rows.toml", ("algorithm", "edge-strategy", "feddyn.alpha"))
TARGETS = (0.3, 0.35)
ALPHA = 0.1  # of classes over edges, and over the clients of each

Counts = NDArray[np.float64]


def two_level(labels: NDArray[np.int64], num_clients: int, num_edges: int, seed: int) -> list[NDArray[np.int64]]:
    """Share out examples so that edges draw class proportions from Dir(0.1), and the clients of each do so again.

    All clients get as many examples, so that they make as many steps, which MTGC asks for.
    """
    rng = np.random.default_rng(seed)
    classes = [rng.permutation(np.flatnonzero(labels == label)) for label in range(labels.max() + 1)]
    each = len(labels) // num_clients
    per_edge = num_clients // num_edges
    own = [np.empty(0, np.int64)] * num_clients
    left = np.array([len(members) for members in classes], dtype=np.float64) * each * num_clients / len(labels)
    edges = balanced(rng.dirichlet(np.full(len(classes), ALPHA), num_edges), np.full(num_edges, each * per_edge), left)
    taken = np.zeros(len(classes), dtype=np.int64)
    for edge, shares in enumerate(edges):
        drawn = rng.dirichlet(np.full(len(classes), ALPHA), per_edge)
        counts = whole(balanced(drawn, np.full(per_edge, each), shares))
        for place, row in enumerate(counts):
            parts = [members[at : at + n] for members, at, n in zip(classes, taken, row, strict=True)]
            own[edge * per_edge + place] = np.concatenate(parts)
            taken += row
    # What rounding has left, a few to each.
    rest = np.concatenate([members[at:] for members, at in zip(classes, taken, strict=True)])
    missing = np.cumsum([each - len(examples) for examples in own])
    parts = np.split(rest, np.minimum(missing, len(rest)))
    return [np.concatenate(pair) for pair in zip(own, [*parts[:-2], np.concatenate(parts[-2:])], strict=True)]


def balanced(shares: Counts, rows: NDArray[Any], columns: NDArray[Any]) -> Counts:
    """Return the numbers nearest to `shares` with these sums: rows and columns are scaled in turn (Sinkhorn)."""
    found = shares + 1e-9
    for _ in range(10_000):
        found *= columns / found.sum(axis=0)
        found *= (rows / found.sum(axis=1))[:, None]
        if np.allclose(found.sum(axis=0), columns, rtol=1e-9, atol=1e-6):
            break
    return found


def whole(counts: Counts) -> NDArray[np.int64]:
    """Return whole numbers below these: what is cut off is left to nobody."""
    return np.floor(counts + 1e-6).astype(np.int64)


def rounds_to(target: float, rounds: Sequence[RoundLine]) -> int | None:
    """Return the first round with this accuracy; None if there is none."""
    return next((line.round for line in rounds if line.accuracy >= target), None)


def of_seeds(found: Sequence[int | None]) -> str:
    """Return the mean of rounds over seeds; where some never got there, how many did."""
    there = [number for number in found if number is not None]
    return mean_of(there, 1) if len(there) == len(found) else f"{len(there)} of {len(found)} seeds"


def print_table(lines: Sequence[RoundLine]) -> None:
    """Print the table as it is in the docs."""
    runs = by_run(lines, list(ROWS.planned))
    last = max(line.round for line in lines)
    targets = " | ".join(f"rounds to {target:g}" for target in TARGETS)
    print(f"| | {targets} | accuracy after {last} | the best |\n|---|{'---|' * (len(TARGETS) + 2)}")
    for row in dict.fromkeys(row for row, _ in runs):
        own = [rounds for (name, _), rounds in runs.items() if name == row]
        cells = [of_seeds([rounds_to(target, rounds) for rounds in own]) for target in TARGETS]
        cells.append(mean_of([rounds[-1].accuracy for rounds in own], 3))
        cells.append(mean_of([max(line.accuracy for line in rounds) for rounds in own], 3))
        print(f"| {row} | {' | '.join(cells)} |")


def main(arguments: Sequence[str] | None = None) -> None:
    """Add the runs that the CSV lacks, and print the table."""
    given = parser_of(__doc__).parse_args(arguments)
    print_table(rounds_with(given.csv, given.folders, SETTINGS, ROWS.varied, ROWS.row_of))


if __name__ == "__main__":
    run_script(main)
