"""Flower's baseline `niid_bench` on CIFAR-10, Dir(0.5) and IID: its model, and a table of accuracies beside its own.

``python -m experiments.niid_bench FOLDER ... --csv PATH`` takes folders of finished runs, or of the sweep of
``niid-bench-cifar10.toml`` with ``sweeps/niid-bench-rows.toml``. Of each run that is not in the CSV yet it adds a line
for every round, and prints a table of all that the CSV has. Without a folder it only prints.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import nn

from espalier.app.comparison.runs import FinishedRun
from espalier.app.ground.errors import UserError
from experiments.balanced_dirichlet import balanced_dirichlet
from experiments.recorded_rounds import RoundLine, Rows, by_run, mean_of, parser_of, rounds_with
from experiments.records import run_script

HERE = Path(__file__).parent
SETTINGS = HERE / "niid-bench-cifar10.toml"
ROWS = Rows(SETTINGS, HERE / "sweeps/niid-bench-rows.toml", ("algorithm", "cloud-strategy", "partition"))
# The best accuracy over 50 rounds; FedProx has the best of four mu.
PUBLISHED = {"FedAvg": 0.6247, "SCAFFOLD": 0.6808, "FedProx": 0.6563, "FedNova": 0.6389}
PUBLISHED_IID = {"FedAvg": 0.7132, "SCAFFOLD": 0.7166, "FedProx": 0.7126, "FedNova": 0.7069}
LEAST, ALL = 20, 50  # rounds of a recorded run
SHOWN = (5, 10, LEAST, ALL)
PUBLISHED_SEED, ALPHA = 42, 0.5  # of the one split of its clients' images


def cnn(num_classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
    """Return the CNN of NIID-Bench (Li et al., ICDE 2022).

    Two convolutions of 5x5 with 6 and 16 channels, and linear layers of 120 and 84.

    Parameters
    ----------
    num_classes : int
        Number of outputs.
    input_shape : tuple[int, int, int]
        Channels, height and width of an image, which has to be square.
    """
    channels, size, _ = input_shape
    left = ((size - 4) // 2 - 4) // 2  # behind both convolutions and their pooling
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(channels, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        nn.Sequential(nn.Linear(16 * left * left, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()),
        nn.Linear(84, num_classes),
    )


def published_split(labels: np.ndarray, num_clients: int) -> list[np.ndarray]:
    """Share images out as niid_bench does, whose split has a seed of its own: as many of each class for each client.

    Parameters
    ----------
    labels : np.ndarray
        The classes of the images of the training pool, shape ``(N,)``.
    num_clients : int
        The number of clients.
    """
    return balanced_dirichlet(np.random.default_rng(PUBLISHED_SEED), labels, num_clients, ALPHA)


def print_table(lines: Sequence[RoundLine]) -> None:
    """Print the table as it is in the docs."""
    runs = by_run(lines, list(ROWS.planned))
    titles = [*(f"after {number} rounds" for number in SHOWN), *(f"the best of {number}" for number in (LEAST, ALL))]
    print(f"| | {' | '.join(titles)} | published, the best of {ALL} |\n|---|{'---|' * (len(titles) + 1)}")
    for row in dict.fromkeys(row for row, _ in runs):
        own = [[line.accuracy for line in rounds] for (name, _), rounds in runs.items() if name == row]
        cells = [_cell([rounds[number - 1] for rounds in own if len(rounds) >= number]) for number in SHOWN]
        cells += [_cell([max(rounds[:number]) for rounds in own if len(rounds) >= number]) for number in (LEAST, ALL)]
        print(f"| {row} | {' | '.join(cells)} | {published_of(row):.4f} |")


def algorithm_of(row: str) -> str:
    """Return which of the published algorithms a row is of."""
    return next(name for name in PUBLISHED if row.startswith(name))


def published_of(row: str) -> float:
    """Return the published accuracy beside a row."""
    return (PUBLISHED_IID if row.endswith(", IID") else PUBLISHED)[algorithm_of(row)]


def _cell(accuracies: Sequence[float]) -> str:
    return mean_of(accuracies, 4) if accuracies else "-"


def row_of(run: FinishedRun) -> str:
    """Return the row of the table that a run is of, which has as many rounds as the table shows, or more."""
    if (number := run.settings["global-rounds"]) < LEAST:
        raise UserError(f"{run.folder}: global-rounds = {number}: allowed is {LEAST} or more")
    return ROWS.row_of(run)


def main(arguments: Sequence[str] | None = None) -> None:
    """Add the runs that the CSV lacks, and print the table."""
    given = parser_of(__doc__).parse_args(arguments)
    print_table(rounds_with(given.csv, given.folders, SETTINGS, {*ROWS.varied, "global-rounds"}, row_of))


if __name__ == "__main__":
    run_script(main)
