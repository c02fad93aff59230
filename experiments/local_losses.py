"""FSL-SAGE's own setting on CIFAR-10, its first 20 rounds: accuracy over the bytes that were sent.

``python -m experiments.local_losses FOLDER ... --csv PATH`` takes folders of finished runs, or of the sweep of
``fsl-sage-cifar10.toml`` with ``sweeps/fsl-sage-rows.toml``. Of each run that is not in the CSV yet it adds a line for
every round, and prints a table of all that the CSV has beside the paper's figures. ``--figure PATH`` draws accuracy
over bytes, with the published ends. Without a folder it only prints and draws.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from espalier.app.comparison.runs import FinishedRun
from espalier.app.ground.errors import UserError
from espalier.app.ground.pictures import PALETTE, save_plot
from experiments.recorded_rounds import RoundLine, by_run, parser_of, rounds_with
from experiments.records import run_script

SETTINGS = Path(__file__).parent / "fsl-sage-cifar10.toml"
NAMES = {"fsl-sage": "FSL-SAGE", "cse-fsl": "CSE-FSL", "sfl-v1": "SFL-V1", "sfl-v2": "SFL-V2", "fedavg": "FedAvg"}
PAPER = {"FSL-SAGE": 12.20, "CSE-FSL": 26.02, "SFL-V1": 60.23, "FedAvg": 70.04, "SFL-V2": 109.07}  # GiB to PUBLISHED
PUBLISHED = 0.81  # accuracy, about
SHOWN = (1, 5, 10, 20)
GIB = 2**30


def row_of(run: FinishedRun) -> str:
    """Return the row of the table that a run is of."""
    if (algorithm := run.settings["algorithm"]) not in NAMES:
        raise UserError(f"{run.folder}: algorithm = {algorithm!r}: allowed is one of {', '.join(NAMES)}")
    return NAMES[algorithm]


def print_table(lines: Sequence[RoundLine]) -> None:
    """Print the table as it is in the docs."""
    titles = [f"after {number}" if number > 1 else "after 1 round" for number in SHOWN]
    print(f"| | {' | '.join(titles)} | GiB by then | published GiB to 81 % |\n|---|{'---|' * len(SHOWN)}---|---|")
    for (algorithm, _), rounds in by_run(lines, list(PAPER)).items():
        cells = [f"{line.accuracy:.4f}" for line in rounds if line.round in SHOWN]
        print(f"| {algorithm} | {' | '.join(cells)} | {rounds[-1].bytes / GIB:.2f} | {PAPER[algorithm]:.2f} |")


def draw(path: Path, lines: Sequence[RoundLine]) -> None:
    """Draw accuracies over bytes; crosses are the published ends."""
    runs = by_run(lines, list(PAPER))

    def fill(axes: Sequence[Axes], found: dict[tuple[str, int], list[RoundLine]]) -> None:
        (ax,) = axes
        for ((algorithm, _), rounds), color in zip(found.items(), PALETTE, strict=False):
            sent, accuracies = [one.bytes / GIB for one in rounds], [one.accuracy for one in rounds]
            style: dict[str, Any] = {"color": color, "lw": 1.2, "marker": "o", "ms": 2.5}
            ax.plot(sent, accuracies, label=algorithm, **style)
            ax.plot([PAPER[algorithm]], [PUBLISHED], color=color, marker="x", ms=7, mew=1.6)
        ax.set(xscale="log", xlabel="GiB sent, up and down", ylabel="test accuracy", ylim=(0, 0.9))
        ax.legend(fontsize=8, loc="upper left")

    title = "CIFAR-10, ResNet-18, 10 clients, 20 rounds; x: the paper's ends"
    save_plot(path, title, fill, runs, width=5.6, height=3.8, columns=1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Add the runs that the CSV lacks, print the table and draw the figure."""
    parser = parser_of(__doc__)
    parser.add_argument("--figure", type=Path)
    given = parser.parse_args(arguments)
    lines = rounds_with(given.csv, given.folders, SETTINGS, {"algorithm"}, row_of)
    print_table(lines)
    if given.figure:
        draw(given.figure, lines)


if __name__ == "__main__":
    run_script(main)
