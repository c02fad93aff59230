"""What differential privacy costs in accuracy, by who is protected and where the noise is added.

``python -m experiments.private_tiers`` trains a linear model on digits by h-fedavg with budgets of epsilon for a client
at its edge or at the cloud, and for each example at its client, and prints the final test accuracies. ``--csv PATH``
writes a row for each run as soon as it is over, with the commit and the machine; runs that have a row are not made
again. ``--figure PATH`` draws accuracy over epsilon. ``--data-dir FOLDER`` takes CIFAR-10 as folders of images,
``train/<class>/*`` and ``test/<class>/*``, of 8x8 pixels.
"""

from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
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
    """Return a linear model of an image: 650 weights for digits, 1,930 for CIFAR-10, each of which gets noise."""
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
# By data set: what differs from digits, and by level.
CIFAR10: dict[str, Any] = {"dataset": "image-folder", "data.image-size": 8}
OF_MANY: dict[str, Any] = {"num-clients": 1000, "batch-size": 50, "stack": 250}
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "digits": LEVELS,
    "cifar10": {
        "client-at-edge": {**LEVELS["client-at-edge"], **CIFAR10, **OF_MANY},
        "client-at-cloud": {**LEVELS["client-at-cloud"], **CIFAR10, **OF_MANY},
        "example-at-client": {**LEVELS["example-at-client"], **CIFAR10, "learning-rate": 0.3},
    },
}
EPSILONS = (1.0, 3.0, 8.0, 0.0)  # 0: neither bound nor noise
SEEDS = (0, 1, 2)
COLUMNS = {
    "setting": str,
    "level": str,
    "budget": float,
    "seed": int,
    "accuracy": float,
    "epsilon": float,
    "commit": str,
    "machine": str,
}

Row = dict[str, Any]


def row_of_run(setting: str, level: str, budget: float, seed: int, data: Mapping[str, str]) -> Row:
    """Train; return the accuracy on the test pool, and the epsilon that was spent; `data` says where the images are."""
    own = {**SETTING, **SETTINGS[setting][level], "seed": seed, **data}
    if budget:
        own |= {"privacy.level": level, "privacy.epsilon": budget}
    else:
        own.pop("privacy.clip")
    summary = summary_of_run(own)
    spent = summary["privacy"]["epsilon"] if budget else 0.0
    accuracy = round(summary["test"]["accuracy"], 4)
    case = {"setting": setting, "level": level, "budget": budget, "seed": seed}
    return {**case, "accuracy": accuracy, "epsilon": round(spent, 4)}


def means(rows: Sequence[Row]) -> dict[tuple[str, str, float], tuple[float, float]]:
    """Return the mean accuracy and its standard deviation over seeds, by data set, level and budget."""
    found: dict[tuple[str, str, float], list[float]] = {}
    for row in rows:
        found.setdefault((row["setting"], row["level"], row["budget"]), []).append(row["accuracy"])
    return {key: (fmean(own), stdev(own) if len(own) > 1 else 0.0) for key, own in found.items()}


def whole_settings(found: Mapping[tuple[str, str, float], Any]) -> list[str]:
    """Return the data sets of which there are all levels and budgets."""
    return [
        setting for setting, levels in SETTINGS.items() if found.keys() >= set(product([setting], levels, EPSILONS))
    ]


def print_table(rows: Sequence[Row]) -> None:
    """Print the table as it is in the docs."""
    found = means(rows)
    print(f"| data, protected | {' | '.join(f'epsilon {budget:g}' if budget else 'nobody' for budget in EPSILONS)} |")
    print(f"|---|{'---|' * len(EPSILONS)}")
    for setting in whole_settings(found):
        for level in SETTINGS[setting]:
            cells = ("{:.3f}±{:.3f}".format(*found[setting, level, budget]) for budget in EPSILONS)
            print(f"| {setting}, `{level}` | {' | '.join(cells)} |")


def draw(path: Path, rows: Sequence[Row]) -> None:
    """Draw mean accuracies over epsilon, with standard deviations over seeds; dashed without privacy."""
    every = means(rows)
    settings = whole_settings(every)

    def fill(axes: Sequence[Axes], found: dict[tuple[str, str, float], tuple[float, float]]) -> None:
        budgets = [budget for budget in sorted(EPSILONS) if budget]
        for ax, setting in zip(axes, settings, strict=True):
            for level, color in zip(LEVELS, PALETTE, strict=False):
                accuracies, deviations = zip(*(found[setting, level, budget] for budget in budgets), strict=True)
                style: dict[str, Any] = {"color": color, "lw": 1.2, "marker": "o", "ms": 3, "capsize": 2}
                ax.errorbar(budgets, accuracies, deviations, label=level, **style)
                ax.axhline(found[setting, level, 0.0][0], color=color, lw=0.8, ls="--")
            ax.set(title=setting, xscale="log", xlabel="epsilon at delta 1e-5", ylabel="test accuracy", ylim=(0, None))
            ax.set_xticks(budgets, [f"{budget:g}" for budget in budgets])
            ax.minorticks_off()
        axes[0].legend(fontsize=8)

    width, columns = 4.4 * len(settings), len(settings)
    title = "h-fedavg, linear model, three seeds"
    save_plot(path, title, fill, every, width=width, height=3.6, columns=columns)


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that have no row, print the table and draw the figure."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--data-dir", type=Path, help="of CIFAR-10: a folder with train/<class>/* and test/<class>/*")
    given = parser.parse_args(arguments)
    quiet_flower()
    made_by = {key: maker()[key] for key in ("commit", "machine")}
    setting, data = ("cifar10", {"data-dir": str(given.data_dir)}) if given.data_dir else ("digits", {})

    def rows_of(case: tuple[str, str, float, int]) -> list[Row]:
        return [row_of_run(*case, data) | made_by]

    rows = completed(
        given.csv,
        COLUMNS,
        product([setting], SETTINGS[setting], EPSILONS, given.seeds),
        lambda row: (row["setting"], row["level"], row["budget"], row["seed"]),
        rows_of,
    )
    print_table(rows)
    if given.figure:
        draw(given.figure, rows)


if __name__ == "__main__":
    run_script(main)
