"""How the number of steps and the rate of fine-tuning decide what personalisation gives.

``python -m experiments.fine_tuning FOLDER ...`` takes the folder of a sweep of split runs, or results folders of
finished ones, and fine-tunes the heads of each with several numbers of steps K and learning rates. It prints, by
algorithm, test accuracy and loss, mean over clients, with its mean and standard deviation over the runs (seeds), and
draws them as ``fine-tuning.png``; ``--figure PATH`` puts the figure elsewhere. The first row, and the dashed lines, are
the global model. ``--csv PATH`` writes a line for each run and setting.
"""

import csv
import sys
from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from rich.progress import track

from espalier.app.assembly import assemble, checked_task
from espalier.app.comparison.command import finished_runs
from espalier.app.config.parse import parse_config
from espalier.app.config.run_config import RunConfig
from espalier.app.config.saved import saved_config
from espalier.app.engines.in_process import InProcess
from espalier.app.errors import UserError
from espalier.app.logs import quiet_flower
from espalier.app.reports.folder import ResultsFolder
from espalier.app.reports.metrics import is_evaluation
from espalier.app.reports.plots import BLUE, GREY, ORANGE
from espalier.clients.messages.train import ACCURACY, LOSS
from espalier.strategies.edges import innermost
from espalier.strategies.exchange import converse
from espalier.strategies.split import FineTuning, SplitEdge
from espalier.strategies.views import MemberGrid

STEPS, RATES = (10, 50), (0.001, 0.003, 0.01, 0.03, 0.1)
SETTINGS: list[FineTuning | None] = [None, *(FineTuning(k, rate) for k in STEPS for rate in RATES)]
COLORS = (BLUE, ORANGE, GREY, "#6d597a", "#b4c5a1")  # one for each split algorithm
Result = dict[str, float]


def measure(folder: Path, config: RunConfig) -> list[Result]:
    """Return accuracy and loss, mean over clients, for each of `SETTINGS`; None stands for the global model."""
    results_folder = ResultsFolder(folder)
    if not config.algorithm.splits or (state := results_folder.load_state()) is None:
        raise UserError(f"{folder}: allowed is the results folder of a split run with a finished round")
    # What a head is tuned to depends neither on how edges were trained, or where, nor on the clients' cuts.
    plain = {
        "deploy.role": "server",
        "selection": "everybody",
        "plan.resources": "simulated",
        "train.weighting": "examples",
        "cut-layer": 1 if config.split.cut_layer.is_best else config.split.cut_layer.text,
    }
    config = parse_config({**config.as_dict(), **plain})
    grid = InProcess.open(config.federation.num_clients, config.as_dict(), config.seed).grid
    hierarchical = assemble(config, grid, *checked_task(config)).hierarchical
    evaluated = [line for line in results_folder.read_metrics() if line["scope"] == "global" and ACCURACY in line]
    means = []
    for setting in SETTINGS:
        if setting is None:
            means.append({key: evaluated[-1][key]["mean"] for key in (ACCURACY, LOSS)})
            continue
        conversations = {
            name: edge.personalise(state.arrays, setting, MemberGrid(grid, hierarchical.topology[name]))
            for name, edge in zip(hierarchical.edges, map(innermost, hierarchical.edges.values()), strict=True)
            if isinstance(edge, SplitEdge)
        }
        replies = [metrics for r in converse(grid, conversations).values() for metrics in r.metrics.values()]
        clients = [metrics for metrics in replies if is_evaluation(metrics)]
        means.append({key: fmean(float(metrics[key]) for metrics in clients) for key in (ACCURACY, LOSS)})
    return means


def print_table(found: Mapping[str, Sequence[Sequence[Result]]]) -> None:
    """Print a row per setting, with accuracy and loss of every algorithm."""
    columns = [(name, key) for name in found for key in (ACCURACY, LOSS)]
    print(f"{'':<12}" + "".join(f"{f'{name} {key}':>18}" for name, key in columns))
    print(f"{'runs':<12}" + "".join(f"{len(found[name]):>18}" for name, _ in columns))
    for i, setting in enumerate(SETTINGS):
        label = f"K={setting.num_steps} {setting.learning_rate:g}" if setting else "global"
        values = [[run[i][key] for run in found[name]] for name, key in columns]
        print(f"{label:<12}" + "".join(f"{f'{fmean(v):.3f} +- {pstdev(v):.3f}':>18}" for v in values))


def write_csv(lines: Sequence[tuple[str, int, Sequence[Result]]], path: Path) -> None:
    """Write a line for each run, an algorithm and a seed, and each of `SETTINGS`; the global model has K = 0."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["algorithm", "seed", "steps", "rate", ACCURACY, LOSS])
        for algorithm, seed, results in lines:
            for setting, result in zip(SETTINGS, results, strict=True):
                tuned = (setting.num_steps, setting.learning_rate) if setting else (0, 0.0)
                writer.writerow([algorithm, seed, *tuned, result[ACCURACY], result[LOSS]])


def draw(found: Mapping[str, Sequence[Sequence[Result]]], path: Path) -> None:
    """Draw accuracy and loss against the rate, a line per algorithm and K; error bars are one standard deviation."""
    figure = Figure(figsize=(10.0, 3.6), layout="constrained")
    for ax, key in zip(figure.subplots(1, 2), (ACCURACY, LOSS), strict=True):
        for (name, runs), color in zip(found.items(), COLORS, strict=False):
            draw_algorithm(ax, name, [[result[key] for result in run] for run in runs], color)
        ax.set(xscale="log", xlabel="fine-tuning rate", ylabel=f"test {key}, mean over clients")
        ax.set_xticks(RATES, [f"{rate:g}" for rate in RATES])
        ax.xaxis.set_minor_locator(NullLocator())
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(axis="y", alpha=0.3)
    figure.axes[1].set(yscale="log")  # large steps on a head can make the loss many times the global model's
    figure.axes[1].yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    figure.axes[1].yaxis.set_minor_locator(NullLocator())
    figure.axes[1].yaxis.set_major_formatter("{x:g}")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), frameon=False, fontsize=8, loc="outside right center")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def draw_algorithm(ax: Axes, name: str, runs: Sequence[Sequence[float]], color: str) -> None:
    """Draw one algorithm's lines; `runs` has one value for each of `SETTINGS`."""
    by_setting = {setting: [run[i] for run in runs] for i, setting in enumerate(SETTINGS)}
    for k, marker, style in zip(STEPS, ("o", "s"), ("-", ":"), strict=True):
        values = [by_setting[FineTuning(k, rate)] for rate in RATES]
        ax.errorbar(
            RATES,
            [fmean(v) for v in values],
            yerr=[pstdev(v) for v in values],
            color=color,
            marker=marker,
            ls=style,
            ms=4,
            capsize=3,
            label=f"{name}, K = {k}",
        )
    ax.axhline(fmean(by_setting[None]), color=color, ls="--", lw=1, label=f"{name}, global model")


def main() -> None:
    """Measure, print and draw."""
    parser = ArgumentParser(description="Fine-tune the heads of finished split runs with several steps and rates.")
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="of a sweep, or of a finished run")
    parser.add_argument("--figure", type=Path, default=Path("fine-tuning.png"), help="default: %(default)s")
    parser.add_argument("--csv", type=Path, help="default: none is written")
    arguments = parser.parse_args()
    quiet_flower()
    found, lines = defaultdict(list), []
    try:
        for run in track(finished_runs([folder.absolute() for folder in arguments.folders]), "runs"):
            config = saved_config(run.folder)
            results = measure(run.folder, config)
            found[config.algorithm.name].append(results)
            lines.append((config.algorithm.name, config.seed, results))
    except UserError as error:
        sys.exit(f"error: {error}")
    print_table(found)
    if arguments.csv:
        write_csv(lines, arguments.csv)
    draw(found, arguments.figure)


if __name__ == "__main__":
    main()
