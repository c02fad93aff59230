"""What differential privacy costs in accuracy, by who is protected and where the noise is added.

``python -m experiments.private_tiers`` trains a linear model on digits by h-fedavg with budgets of epsilon for a client
at its edge or at the cloud, and for each example at its client, and prints the final test accuracies. ``--csv PATH``
writes a row for each run as soon as it is over, with the commit and the machine; runs that have a row are not made
again. ``--figure PATH`` draws accuracy over epsilon.
"""

from argparse import ArgumentParser
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from matplotlib.axes import Axes
from torch import nn

from espalier.app.ground.logs import quiet_flower
from espalier.app.ground.pictures import PALETTE, save_plot
from espalier.app.reports.made_by import maker
from experiments.records import completed, run_script
from experiments.runs import summary_of_run


def linear(input_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """Return a linear model of an image: 650 weights for digits, each of which gets noise."""
    channels, height, width = input_shape
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, num_classes))


SETTING: dict[str, Any] = {
    "engine": "in-process",
    "model": "experiments.private_tiers:linear",
    "num-edges": 2,
    "partition": "iid",
    "data.min-samples": 1,
    "train.weighting": "equal",
    "report.evaluate-every": 0,
    "report.plots": False,
}
CLIENTS: dict[str, Any] = {"num-clients": 240, "global-rounds": 8, "edge-rounds": 1, "local-epochs": 4, "batch-size": 8}
CLIENTS |= {"stack": 120, "report.evaluate-clients": 0.0}
EXAMPLES: dict[str, Any] = {"num-clients": 8, "global-rounds": 8, "edge-rounds": 1, "local-epochs": 1}
EXAMPLES |= {"batch-size": 64, "learning-rate": 1.0}
# By level: the settings of federation and training, and the longest update, or gradient.
LEVELS: dict[str, dict[str, Any]] = {
    "client-at-edge": {**CLIENTS, "privacy.clip": 0.5},
    "client-at-cloud": {**CLIENTS, "privacy.clip": 0.5},
    "example-at-client": {**EXAMPLES, "privacy.clip": 1.0},
}
EPSILONS = (1.0, 3.0, 8.0, 0.0)  # 0: neither bound nor noise
SEEDS = (0, 1, 2)
COLUMNS = {
    "level": str,
    "budget": float,
    "seed": int,
    "accuracy": float,
    "epsilon": float,
    "commit": str,
    "machine": str,
}

Row = dict[str, Any]


def row_of_run(level: str, budget: float, seed: int) -> Row:
    """Train; return the accuracy on the test pool, and the epsilon that was spent."""
    own = {**SETTING, **LEVELS[level], "seed": seed}
    if budget:
        own |= {"privacy.level": level, "privacy.epsilon": budget}
    else:
        own.pop("privacy.clip")
    summary = summary_of_run(own)
    spent = summary["privacy"]["epsilon"] if budget else 0.0
    accuracy = round(summary["test"]["accuracy"], 4)
    return {"level": level, "budget": budget, "seed": seed, "accuracy": accuracy, "epsilon": round(spent, 4)}


def means(rows: Sequence[Row]) -> dict[tuple[str, float], tuple[float, float]]:
    """Return the mean accuracy and its standard deviation over seeds, by level and budget."""
    found: dict[tuple[str, float], list[float]] = {}
    for row in rows:
        found.setdefault((row["level"], row["budget"]), []).append(row["accuracy"])
    return {key: (fmean(own), stdev(own) if len(own) > 1 else 0.0) for key, own in found.items()}


def print_table(rows: Sequence[Row]) -> None:
    """Print the table as it is in the docs."""
    found = means(rows)
    budgets = sorted({budget for _, budget in found}, key=lambda budget: budget or float("inf"))
    print(f"| protected | {' | '.join(f'epsilon {budget:g}' if budget else 'nobody' for budget in budgets)} |")
    print(f"|---|{'---|' * len(budgets)}")
    for level in LEVELS:
        cells = (f"{found[level, budget][0]:.3f} ± {found[level, budget][1]:.3f}" for budget in budgets)
        print(f"| `{level}` | {' | '.join(cells)} |")


def draw(path: Path, rows: Sequence[Row]) -> None:
    """Draw mean accuracies over epsilon, with standard deviations over seeds; dashed without privacy."""

    def fill(axes: Sequence[Axes], found: dict[tuple[str, float], tuple[float, float]]) -> None:
        (ax,) = axes
        for level, color in zip(LEVELS, PALETTE, strict=False):
            own = sorted((budget, *figures) for (name, budget), figures in found.items() if name == level and budget)
            budgets, accuracies, deviations = zip(*own, strict=True)
            ax.errorbar(budgets, accuracies, deviations, color=color, lw=1.2, marker="o", ms=3, capsize=2, label=level)
            ax.axhline(found[level, 0.0][0], color=color, lw=0.8, ls="--")
        ax.set(xscale="log", xlabel="epsilon at delta 1e-5", ylabel="test accuracy", ylim=(0, 1))
        ax.set_xticks(budgets, [f"{budget:g}" for budget in budgets])
        ax.minorticks_off()
        ax.legend(fontsize=8)

    save_plot(path, "h-fedavg on digits, linear model, three seeds", fill, means(rows), width=5.4, height=3.6)


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that have no row, print the table and draw the figure."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--figure", type=Path)
    given = parser.parse_args(arguments)
    quiet_flower()
    made_by = {key: maker()[key] for key in ("commit", "machine")}
    rows = completed(
        given.csv,
        COLUMNS,
        product(LEVELS, EPSILONS, given.seeds),
        lambda row: (row["level"], row["budget"], row["seed"]),
        lambda case: [{**row_of_run(*case), **made_by}],
    )
    print_table(rows)
    if given.figure:
        draw(given.figure, rows)


if __name__ == "__main__":
    run_script(main)
