"""How the number of steps and the rate of fine-tuning decide what personalisation gives.

``python -m experiments.fine_tuning FOLDER ... --csv PATH`` takes the folder of a sweep of split runs, or results
folders of finished ones. Of each run that has no line in the CSV yet it fine-tunes the heads with several numbers of
steps K and learning rates, and adds a line for each of them and one for the global model. It prints, by algorithm, test
accuracy and loss, mean over clients, with mean and standard deviation over the runs (seeds) of all that the CSV has.
Without a folder it only prints, and with ``--figure PATH`` it draws; dashed lines are the global model.
"""

from argparse import ArgumentParser
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from espalier.app.comparison.runs import FinishedRun
from espalier.app.config.parse import parse_config
from espalier.app.config.run_config import RunConfig
from espalier.app.engines.in_process import InProcess
from espalier.app.ground.errors import UserError
from espalier.app.ground.pictures import BLUE, GREY, ORANGE
from espalier.app.reports.folder import ResultsFolder
from espalier.app.reports.metrics import is_evaluation
from espalier.app.reports.saved import saved_config
from espalier.app.wiring.one_server import assemble, checked_task
from espalier.clients.messages.train import ACCURACY, LOSS
from espalier.strategies.exchange import converse
from espalier.strategies.split import FineTuning, SplitEdge
from espalier.strategies.views import MemberGrid
from experiments.recorded_runs import lines_with
from experiments.records import run_script

STEPS, RATES = (10, 50), (0.001, 0.003, 0.01, 0.03, 0.1)
SETTINGS: list[FineTuning | None] = [None, *(FineTuning(k, rate) for k in STEPS for rate in RATES)]
COLORS = (BLUE, ORANGE, GREY, "#6d597a", "#b4c5a1")  # one for each split algorithm
Result = dict[str, float]


class Line(NamedTuple):
    """A line of the CSV: what a run's model gives at its end, with heads fine-tuned by `steps` steps."""

    algorithm: str
    seed: int
    steps: int  # 0: the global model
    rate: float
    accuracy: float
    loss: float
    commit: str
    machine: str

    @property
    def run(self) -> tuple[str, int]:
        """Which run it is of."""
        return self.algorithm, self.seed


def measure(folder: Path, config: RunConfig) -> list[Result]:
    """Return accuracy and loss, mean over clients, for each of `SETTINGS`; None stands for the global model."""
    results_folder = ResultsFolder(folder)
    if not config.algorithm.splits or (state := results_folder.load_state()) is None:
        raise UserError(f"{folder}: allowed is the results folder of a split run with a finished round")
    # What a head is tuned to depends neither on how edges were trained, or where, nor on the clients' cuts.
    plain = {
        "deploy.role": "server",
        "device": "auto",
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
            for name, edge in hierarchical.edges.items()
            if isinstance(edge.inner, SplitEdge)
        }
        replies = [metrics for r in converse(grid, conversations).values() for metrics in r.metrics.values()]
        clients = [metrics for metrics in replies if is_evaluation(metrics)]
        means.append({key: fmean(float(metrics[key]) for metrics in clients) for key in (ACCURACY, LOSS)})
    return means


def run_of(run: FinishedRun) -> tuple[str, int]:
    """Return which run it is, by the columns of the CSV."""
    return run.settings["algorithm"], run.settings["seed"]


def lines_of(run: FinishedRun) -> Iterator[Line]:
    """Yield the lines of a run that is over, those of `SETTINGS` in their order."""
    config = saved_config(run.folder)
    made_by = {key: run.made_by[key] for key in ("commit", "machine")}
    for setting, means in zip(SETTINGS, measure(run.folder, config), strict=True):
        steps, rate = (setting.num_steps, setting.learning_rate) if setting else (0, 0.0)
        yield Line(config.algorithm.name, config.seed, steps, rate, **means, **made_by)


def by_algorithm(lines: Iterable[Line]) -> dict[str, dict[tuple[int, float], list[Line]]]:
    """Return the lines of each algorithm by steps and rate."""
    found: dict[str, dict[tuple[int, float], list[Line]]] = {}
    for line in sorted(lines):
        found.setdefault(line.algorithm, {}).setdefault((line.steps, line.rate), []).append(line)
    return found


def print_table(lines: Sequence[Line]) -> None:
    """Print a row per setting, with accuracy and loss of every algorithm."""
    found = by_algorithm(lines)
    columns = [(name, key) for name in found for key in (ACCURACY, LOSS)]
    print(f"{'':<12}" + "".join(f"{f'{name} {key}':>18}" for name, key in columns))
    runs = {name: len({line.seed for line in lines if line.algorithm == name}) for name in found}
    print(f"{'runs':<12}" + "".join(f"{runs[name]:>18}" for name, _ in columns))
    for steps, rate in sorted({(line.steps, line.rate) for line in lines}):
        label = f"K={steps} {rate:g}" if steps else "global"
        values = [[getattr(line, key) for line in found[name].get((steps, rate), [])] for name, key in columns]
        print(f"{label:<12}" + "".join(f"{f'{fmean(v):.3f} +- {pstdev(v):.3f}' if v else '-':>18}" for v in values))


def draw(lines: Sequence[Line], path: Path) -> None:
    """Draw accuracy and loss against the rate, a line per algorithm and K; error bars are one standard deviation."""
    figure = Figure(figsize=(10.0, 3.6), layout="constrained")
    rates = sorted({line.rate for line in lines if line.steps})
    for ax, key in zip(figure.subplots(1, 2), (ACCURACY, LOSS), strict=True):
        for (name, found), color in zip(by_algorithm(lines).items(), COLORS, strict=False):
            values = {setting: [getattr(line, key) for line in own] for setting, own in found.items()}
            draw_algorithm(ax, name, values, color)
        ax.set(xscale="log", xlabel="fine-tuning rate", ylabel=f"test {key}, mean over clients")
        ax.set_xticks(rates, [f"{rate:g}" for rate in rates])
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


def draw_algorithm(ax: Axes, name: str, values: Mapping[tuple[int, float], Sequence[float]], color: str) -> None:
    """Draw one algorithm's lines; `values` has those of its runs by steps and rate."""
    for k, marker, style in zip(sorted({steps for steps, _ in values if steps}), ("o", "s"), ("-", ":"), strict=False):
        own = {rate: figures for (steps, rate), figures in sorted(values.items()) if steps == k}
        ax.errorbar(
            list(own),
            [fmean(v) for v in own.values()],
            yerr=[pstdev(v) for v in own.values()],
            color=color,
            marker=marker,
            ls=style,
            ms=4,
            capsize=3,
            label=f"{name}, K = {k}",
        )
    ax.axhline(fmean(values[0, 0.0]), color=color, ls="--", lw=1, label=f"{name}, global model")


def main() -> None:
    """Measure what is new, print and draw."""
    parser = ArgumentParser(description="Fine-tune the heads of finished split runs with several steps and rates.")
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="of a sweep, or of a finished run")
    parser.add_argument("--csv", type=Path, required=True, help="the lines of all runs")
    parser.add_argument("--figure", type=Path, help="default: none is drawn")
    given = parser.parse_args()
    lines = lines_with(Line, given.csv, given.folders, run_of, lines_of)
    print_table(lines)
    if given.figure:
        draw(lines, given.figure)


if __name__ == "__main__":
    run_script(main)
