"""NVFlare's CIFAR-10 example: its model, its splits, and a table of final accuracies beside its own.

``python -m experiments.nvflare FOLDER ... --csv PATH`` takes folders of finished runs, or of the sweep of
``nvflare-cifar10.toml`` with ``sweeps/nvflare-rows.toml``. Of each run that is not in the CSV yet it adds a line for
every round, and prints a table of all that the CSV has. Without a folder it only prints.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import nn

from experiments.balanced_dirichlet import balanced_dirichlet
from experiments.recorded_rounds import RoundLine, Rows, by_run, mean_of, parser_of, rounds_with
from experiments.records import run_script

HERE = Path(__file__).parent
SETTINGS = HERE / "nvflare-cifar10.toml"
VARIED = ("algorithm", "cloud-strategy", "partition", "global-rounds", "local-epochs")
ROWS = Rows(SETTINGS, HERE / "sweeps/nvflare-rows.toml", VARIED)
# The accuracy of the last model.
PUBLISHED = {
    "central, 25 epochs": 0.8876,
    "FedAvg, alpha 1": 0.8911,
    "FedAvg, alpha 0.5": 0.8787,
    "FedAvg, alpha 0.3": 0.8527,
    "FedAvg, alpha 0.1": 0.8045,
    "FedProx, alpha 0.1": 0.8059,
    "FedOpt, alpha 0.1": 0.8058,
    "SCAFFOLD, alpha 0.1": 0.8260,
}
PUBLISHED_SEED = 0  # of the splits


def moderate_cnn(num_classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
    """Return the example's ModerateCNN, which is FedMA's (arXiv:2002.06440): six convolutions of 3x3.

    Parameters
    ----------
    num_classes : int
        Number of outputs.
    input_shape : tuple[int, int, int]
        Channels, height and width of an image; both are multiples of 8.
    """
    channels, height, width = input_shape
    return nn.Sequential(
        nn.Sequential(*_convolutions(channels, 32, 64)),
        nn.Sequential(*_convolutions(64, 128, 128), nn.Dropout2d(0.05)),
        nn.Sequential(*_convolutions(128, 256, 256), nn.Flatten()),
        nn.Sequential(nn.Dropout(0.1), nn.Linear(256 * (height // 8) * (width // 8), 512), nn.ReLU()),
        nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Dropout(0.1)),
        nn.Linear(512, num_classes),
    )


def _convolutions(channels: int, first: int, second: int) -> list[nn.Module]:
    both = [(channels, first), (first, second)]
    return [layer for sizes in both for layer in (nn.Conv2d(*sizes, 3, padding=1), nn.ReLU())] + [nn.MaxPool2d(2)]


def published_split(labels: np.ndarray, num_clients: int, alpha: float) -> list[np.ndarray]:
    """Share images out as the example does, whose splits have a seed of their own.

    Parameters
    ----------
    labels : np.ndarray
        The classes of the images of the training pool, shape ``(N,)``.
    num_clients : int
        The number of clients.
    alpha : float
        The concentration of classes.
    """
    return balanced_dirichlet(np.random.RandomState(PUBLISHED_SEED), labels, num_clients, alpha)


def print_table(lines: Sequence[RoundLine]) -> None:
    """Print the table as it is in the docs."""
    runs = by_run(lines, list(ROWS.planned))
    print("| | accuracy | published |\n|---|---|---|")
    for row in dict.fromkeys(row for row, _ in runs):
        last = [rounds[-1].accuracy for (name, _), rounds in runs.items() if name == row]
        print(f"| {row} | {mean_of(last, 4)} | {PUBLISHED[row]:.4f} |")


def main(arguments: Sequence[str] | None = None) -> None:
    """Add the runs that the CSV lacks, and print the table."""
    given = parser_of(__doc__).parse_args(arguments)
    print_table(rounds_with(given.csv, given.folders, SETTINGS, ROWS.varied, ROWS.row_of))


if __name__ == "__main__":
    run_script(main)
