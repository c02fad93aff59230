"""What attacks on federated and split learning find on digits, before and after each defence.

``python -m experiments.attacks`` rebuilds images from updates of whole models (gradient inversion), hijacks the blocks
of a client whose model is split (FSHA), and reads activations that are clipped and get noise, and prints a table for
each. ``--csv PATH`` writes the rows of an attack and a seed as soon as they are there, with the commit and the machine;
what has rows is not made again. ``--figure PATH`` draws images and what was made of them.
"""

from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path

import torch

from espalier.app.ground.logs import quiet_flower
from espalier.app.reports.made_by import maker
from experiments.attacking import hijack, inverted_updates, noisy_cut
from experiments.attacking.figure import draw, pictures
from experiments.attacking.records import COLUMNS, Measured, Pictures, Row
from experiments.attacking.tables import tables
from experiments.records import completed, run_script

SEEDS = (0, 1, 2)
Attack = Callable[[int], Iterator[Measured | Pictures]]
ATTACKS: dict[str, Attack] = {
    "updates": inverted_updates.measured,
    "hijack": hijack.measured,
    "activations": noisy_cut.measured,
}


def rows_of(seed: int, name: str) -> list[Row]:
    """Make an attack with a seed, and return the rows of its figures."""
    made_by = {key: maker()[key] for key in ("commit", "machine")}
    return [
        {"part": name, **figure.row(seed, made_by)} for figure in ATTACKS[name](seed) if isinstance(figure, Measured)
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the attacks that have no rows, print the tables and draw the figure."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--figure", type=Path)
    given = parser.parse_args(arguments)
    quiet_flower()
    torch.set_num_threads(1)
    rows = completed(
        given.csv,
        COLUMNS,
        product(given.seeds, ATTACKS),
        lambda row: (row["seed"], row["part"]),
        lambda case: rows_of(*case),
    )
    print("\n\n".join(tables(rows)))
    if given.figure:
        draw(given.figure, pictures())


if __name__ == "__main__":
    run_script(main)
