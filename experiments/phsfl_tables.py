"""The PHSFL paper's comparison: global models and fine-tuned heads of HSFL and PHSFL, beside centralised SGD.

``python -m experiments.phsfl_tables FOLDER ... --csv PATH`` takes folders of finished runs, or of sweeps, of
``phsfl-cifar10.toml``. Of each run that has no line in the CSV yet it adds the global model's mean accuracy and loss
over clients, a line for each evaluated round, and of split runs those with heads fine-tuned from the last one, a line
for each number of steps and rate of ``fine_tuning.py``. It prints mean and standard deviation over seeds of all that
the CSV has, by Dirichlet parameter, learning rate and mini-batches of an epoch, beside the paper's figures (Section
V-B), and by how much PHSFL's heads are ahead of HSFL's. Without a folder it only prints, and with ``--figure PATH`` it
draws, as the paper's Figs. 1 to 4.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from espalier.app.comparison.runs import FinishedRun
from espalier.app.ground.errors import UserError, bad_value
from espalier.app.ground.pictures import BLUE, GREY, ORANGE, save_plot
from espalier.app.reports.folder import ResultsFolder
from espalier.app.reports.saved import saved_config
from espalier.clients.messages.train import ACCURACY, LOSS
from experiments.fine_tuning import SETTINGS, measure
from experiments.recorded_runs import differences, lines_with, spread
from experiments.records import run_script

ALGORITHMS = {"centralised": GREY, "hsfl": BLUE, "phsfl": ORANGE}
SETTINGS_FILE = Path(__file__).parent / "phsfl-cifar10.toml"
# In what runs may differ from it: CIFAR-10 may be a folder of images, and heads are fine-tuned again here.
VARIED = {
    "algorithm",
    "alpha",
    "learning-rate",
    "dataset",
    "report.evaluate-every",
    "fine-tune.steps",
    "fine-tune.rate",
}
# Epochs over all examples take three times as long, so runs with them may be shorter.
ALL_BATCHES = 0
WHOLE_EPOCHS_VARY = {"batches-per-epoch", "global-rounds"}
CENTRALISED_VARIES = {"num-edges", "edge-rounds", "local-epochs"}
PAPERS_LEARNING_RATE, PAPERS_ROUNDS = 0.01, 100
PAPERS_STEPS = 10  # at a rate that the paper does not name
# Accuracy and loss by Dirichlet parameter, algorithm and whether heads are fine-tuned. Those of the heads at Dir(0.5)
# are given as gains over the global model's accuracy, of 4.75 % and 9.03 %, without a loss.
PAPER: dict[tuple[float, str, bool], tuple[float, float | None]] = {
    (0.1, "hsfl", False): (0.6606, 1.0049),
    (0.1, "phsfl", False): (0.6446, 1.0975),
    (0.1, "hsfl", True): (0.7958, 0.6735),
    (0.1, "phsfl", True): (0.8708, 0.4721),
    (0.5, "hsfl", False): (0.7163, 0.8432),
    (0.5, "phsfl", False): (0.7049, 0.9104),
    (0.5, "hsfl", True): (0.7163 * 1.0475, None),
    (0.5, "phsfl", True): (0.7049 * 1.0903, None),
}
Setting = tuple[float, float, int]  # Dirichlet parameter, learning rate, mini-batches of a client in an epoch
Run = tuple[str, float, float, int, int]  # the first columns of the CSV


class Line(NamedTuple):
    """A line of the CSV: of a run, what its model gives after a round, with heads fine-tuned by `steps` steps."""

    algorithm: str
    alpha: float
    learning_rate: float
    batches_per_epoch: int
    seed: int
    round: int
    steps: int  # 0: the global model
    rate: float  # of fine-tuning
    accuracy: float
    loss: float
    commit: str
    machine: str

    @property
    def run(self) -> Run:
        """Which run it is of."""
        return self.algorithm, *self.setting, self.seed

    @property
    def setting(self) -> Setting:
        """Which table it is in."""
        return self.alpha, self.learning_rate, self.batches_per_epoch


def run_of(run: FinishedRun) -> Run:
    """Return which run it is, by the columns of the CSV; UserError for one of other settings than the paper's."""
    settings = run.settings
    of_algorithm = CENTRALISED_VARIES if settings["algorithm"] == "centralised" else set[str]()
    of_epochs = WHOLE_EPOCHS_VARY if settings["batches-per-epoch"] == ALL_BATCHES else set[str]()
    varied = VARIED | of_algorithm | of_epochs
    for key, value in differences(settings, SETTINGS_FILE, varied).items():
        raise UserError(f"{run.folder}: {key} = {settings[key]!r}: allowed is {value!r}, as in {SETTINGS_FILE.name}")
    if settings["algorithm"] not in ALGORITHMS:
        raise bad_value(f"{run.folder}: algorithm", settings["algorithm"], f"one of {', '.join(ALGORITHMS)}")
    alpha, learning_rate, batches = (settings[key] for key in ("alpha", "learning-rate", "batches-per-epoch"))
    return settings["algorithm"], alpha, learning_rate, batches, settings["seed"]


def lines_of(run: FinishedRun) -> Iterator[Line]:
    """Yield the lines of a run that is over."""
    config = saved_config(run.folder)
    made_by = {key: run.made_by[key] for key in ("commit", "machine")}
    last = 0
    for line in ResultsFolder(run.folder).read_metrics():
        if line["scope"] == "global" and ACCURACY in line:
            last, means = line["round"], {key: line[key]["mean"] for key in (ACCURACY, LOSS)}
            yield Line(*run_of(run), round=last, steps=0, rate=0.0, **means, **made_by)
    if config.algorithm.splits:
        for setting, means in zip(SETTINGS, measure(run.folder, config), strict=True):
            if setting:
                tuned: dict[str, Any] = {"steps": setting.num_steps, "rate": setting.learning_rate}
                yield Line(*run_of(run), round=last, **tuned, **means, **made_by)


def at_the_end(lines: Sequence[Line]) -> list[Line]:
    """Return the lines of each run's last round."""
    last: dict[Run, int] = defaultdict(int)
    for line in lines:
        last[line.run] = max(last[line.run], line.round)
    return [line for line in lines if line.round == last[line.run]]


def title_of(setting: Setting) -> str:
    """Return what a table or a figure is of."""
    alpha, learning_rate, batches = setting
    trained = f", trained at {learning_rate:g}" if learning_rate != PAPERS_LEARNING_RATE else ""
    return f"Dir({alpha:g})" + trained + (", epochs over all examples" if batches == ALL_BATCHES else "")


def print_table(lines: Sequence[Line], setting: Setting) -> None:
    """Print a row for each algorithm's global model, and for its heads by K and rate."""
    print(f"\n{title_of(setting)}")
    print(f"{'':<32}{'runs':>4}{'accuracy':>19}{'paper':>8}{'loss':>19}{'paper':>8}")
    of_table = [line for line in at_the_end(lines) if line.setting == setting]
    for name in ALGORITHMS:
        of_algorithm = [line for line in of_table if line.algorithm == name]
        for last, steps, rate in sorted({(line.round, line.steps, line.rate) for line in of_algorithm}):
            found = [line for line in of_algorithm if (line.round, line.steps, line.rate) == (last, steps, rate)]
            label = f"{name}, K={steps} at {rate:g}" if steps else f"{name}, global"
            label += f", round {last}" if last != PAPERS_ROUNDS else ""
            published = PAPER.get((setting[0], name, steps > 0)) if steps in (0, PAPERS_STEPS) else None
            accuracy, loss = published or (None, None)
            print(
                f"{label:<32}{len(found):>4}{spread([line.accuracy for line in found])}{paper(accuracy)}"
                f"{spread([line.loss for line in found])}{paper(loss)}"
            )


def leads_of(lines: Sequence[Line], setting: Setting) -> dict[int, dict[float, float]]:
    """Return by how much PHSFL's heads after the paper's number of steps are ahead of HSFL's, by seed and rate.

    Both runs have as many rounds. Under the rate 0 is the lead with each at its own best rate.
    """
    heads: dict[str, dict[tuple[int, int], dict[float, float]]] = {n: defaultdict(dict) for n in ("hsfl", "phsfl")}
    for line in at_the_end(lines):
        if (line.setting, line.steps) == (setting, PAPERS_STEPS):
            heads[line.algorithm][line.seed, line.round][line.rate] = line.accuracy
    leads = {}
    for seed, last in sorted(heads["hsfl"].keys() & heads["phsfl"].keys()):
        theirs, ours = heads["hsfl"][seed, last], heads["phsfl"][seed, last]
        leads[seed] = {rate: ours[rate] - theirs[rate] for rate in sorted(ours.keys() & theirs.keys())}
        leads[seed][0.0] = max(ours.values()) - max(theirs.values())
    return leads


def print_leads(lines: Sequence[Line], tables: Sequence[Setting]) -> None:
    """Print a row for each setting with both algorithms: PHSFL's lead, mean over the seeds that both have."""
    found = {setting: leads for setting in tables if (leads := leads_of(lines, setting))}
    if not found:
        return
    rates = sorted({rate for leads in found.values() for own in leads.values() for rate in own if rate})
    print(f"\nAccuracy of PHSFL's heads less that of HSFL's, K={PAPERS_STEPS}, by fine-tuning rate")
    print(f"{'':<28}{'seeds':>5}{''.join(f'{rate:>9g}' for rate in rates)}{'each at its best':>18}")
    for setting, leads in found.items():
        shared = set.intersection(*(set(own) for own in leads.values()))
        means = {rate: fmean(own[rate] for own in leads.values()) for rate in shared}
        cells = "".join(f"{means[rate]:>+9.4f}" if rate in means else f"{'-':>9}" for rate in rates)
        print(f"{title_of(setting):<28}{len(leads):>5}{cells}{means[0.0]:>+18.4f}")


def paper(value: float | None) -> str:
    """Return a published figure."""
    return f"{'-' if value is None else f'{value:.4f}':>8}"


def draw(path: Path, lines: Sequence[Line], setting: Setting) -> None:
    """Draw the global models over rounds (the paper's Figs. 1 and 2), and heads after K steps over rates (3 and 4).

    Centralised training, whose epochs are over all examples, is drawn with any.
    """
    centralised = ("centralised", *setting[:2])
    drawn = [line for line in lines if line.setting == setting or line[:3] == centralised]
    title = f"CIFAR-10, 100 clients, {title_of(setting)}, mean over clients and seeds"
    save_plot(path, title, _draw_models, drawn, width=11.0, height=6.4, rows=2, columns=2)


def _draw_models(axes: Sequence[Axes], lines: Sequence[Line]) -> None:
    for row, key in enumerate((ACCURACY, LOSS)):
        over_rounds, over_rates = axes[2 * row], axes[2 * row + 1]
        for name, color in ALGORITHMS.items():
            own = [line for line in lines if line.algorithm == name]
            if rounds := by_value([line for line in own if line.steps == 0], "round", key):
                over_rounds.plot(list(rounds), list(rounds.values()), color=color, label=name)
            if rates := by_value([line for line in own if line.steps == PAPERS_STEPS], "rate", key):
                over_rates.plot(list(rates), list(rates.values()), color=color, marker="o", ms=4, label=name)
        over_rounds.set(xlabel="global round, or epoch (centralised)", ylabel=f"test {key}, global model")
        over_rates.set(xlabel="fine-tuning rate", ylabel=f"test {key}, heads after {PAPERS_STEPS} steps", xscale="log")
    axes[3].set(yscale="log")
    axes[0].legend(frameon=False, fontsize=8)


def by_value(lines: Sequence[Line], of: str, key: str) -> dict[float, float]:
    """Return the mean of a figure over lines by the value of a column, in order."""
    values = defaultdict(list)
    for line in lines:
        values[getattr(line, of)].append(getattr(line, key))
    return {value: fmean(values[value]) for value in sorted(values)}


def main() -> None:
    """Measure what is new, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="*", metavar="FOLDER", help="of a sweep, or of a finished run")
    parser.add_argument("--csv", type=Path, required=True, help="the lines of all runs")
    parser.add_argument("--figure", type=Path, help="of the first table with the paper's epochs; default: none")
    given = parser.parse_args()
    lines = lines_with(Line, given.csv, given.folders, run_of, lines_of)
    tables = sorted({line.setting for line in lines})
    for setting in tables:
        print_table(lines, setting)
    print_leads(lines, tables)
    if given.figure:
        draw(given.figure, lines, min(tables, key=lambda setting: (setting[2] == ALL_BATCHES, setting)))


if __name__ == "__main__":
    run_script(main)
