"""The cut-layer paper's Tables 3 (IID) and 4 (Dir(0.1)) for CIFAR-10: FedAvg, SFL-V1 and SFL-V2 at every cut.

``python -m experiments.cut_layer_tables FOLDER ... --csv PATH`` takes folders of finished runs, or of sweeps, of one of
the settings files ``cut-layer-cifar10*.toml`` and the rows in ``sweeps``. Of each run that has no line in the CSV yet
it adds one: mean accuracy over clients after the last round and after the best, its spread over clients, the loss, and
the bytes of training. It prints mean and standard deviation over seeds of all that the CSV has, a table for each
settings file and kind of data, beside the paper's figures. Without a folder it only prints.
"""

import argparse
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from espalier.app.comparison.runs import FinishedRun
from espalier.app.ground.errors import UserError
from espalier.app.reports.folder import ResultsFolder
from espalier.app.sweeps.grid import planned_runs, read_sweep
from espalier.clients.messages.train import ACCURACY, LOSS
from experiments.recorded_runs import differences, lines_with, spread
from experiments.records import run_script

HERE = Path(__file__).parent
SETTINGS = {
    "reduced": HERE / "cut-layer-cifar10-small.toml",
    "paper text": HERE / "cut-layer-cifar10.toml",
    "authors' settings": HERE / "cut-layer-cifar10-authors.toml",
}
ROWS = ("cut-layer-rows",)
SWEEPS = {
    "reduced": [ROWS],
    "paper text": [ROWS],
    "authors' settings": [
        ("cut-layer-authors-rows",),
        ("cut-layer-authors-rows", "cut-layer-authors-non-iid"),
    ],
}
# What rows and places change of a settings file.
VARIED = {"algorithm", "cut-layer", "partition", "alpha", "optimizer", "learning-rate", "report.evaluate-every"}
VARIED |= {"split.server-optimizer", "split.server-learning-rate", "split.server-momentum", "split.server-weight-decay"}
VARIED |= {"split.server-order", "train.momentum"}
# What changes nothing of what is computed: in all rows, in those that are whole models', in IID data.
FREE, WHOLE, IID = {"report.evaluate-every"}, {"FedAvg", "SFL-V1"}, "iid"
# Accuracy with IID data and with Dir(0.1); of SFL-V1 for four cuts, at which it is the same algorithm.
PAPER: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "FedAvg": ((0.8525,), (0.6759,)),
    "SFL-V1": ((0.8634, 0.8612, 0.8594, 0.8601), (0.6638, 0.6564, 0.6536, 0.6451)),
    "SFL-V2 L1": ((0.9230,), (0.6758,)),
    "SFL-V2 L2": ((0.8956,), (0.5998,)),
    "SFL-V2 L3": ((0.8757,), (0.6173,)),
    "SFL-V2 L4": ((0.8611,), (0.6945,)),
}


class Line(NamedTuple):
    """A line of the CSV: what came of a run."""

    setting: str
    partition: str
    row: str
    seed: int
    accuracy: float  # after the last round
    over_clients: float  # its standard deviation
    loss: float
    best_accuracy: float  # of the evaluated rounds
    uplink_bytes: int
    downlink_bytes: int
    commit: str
    machine: str

    @property
    def run(self) -> tuple[str, str, str, int]:
        """Which run it is of."""
        return self.setting, self.partition, self.row, self.seed


def setting_of(settings: Mapping[str, Any]) -> str:
    """Return the name of the settings file that a run was made with, by what rows do not change of it.

    Raises
    ------
    UserError
        If it is none of them.
    """
    found = [name for name, path in SETTINGS.items() if not differences(settings, path, VARIED)]
    if found:
        return found[-1]  # the authors' settings are those of the text, and more
    files = ", ".join(path.name for path in SETTINGS.values())
    raise UserError(f"its settings are none of {files} (see experiments/sweeps)")


def row_of(settings: Mapping[str, Any]) -> str:
    """Return the row of the tables that a run belongs to."""
    names = {"fedavg": "FedAvg", "sfl-v1": "SFL-V1", "sfl-v2": f"SFL-V2 L{settings['cut-layer']}"}
    row = names.get(settings["algorithm"])
    if row not in PAPER:
        raise UserError(f"algorithm = {settings['algorithm']!r}, cut-layer = {settings['cut-layer']!r}: no such row")
    return row


@cache
def rows_of(file: Path, sweeps: tuple[tuple[str, ...], ...]) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Return the settings of each partition and row, by a settings file and the sweeps beside it."""
    every = [[str(file), *(f"{HERE}/sweeps/{name}.toml" for name in names), "data-dir=."] for names in sweeps]
    runs = [run for files in every for run in planned_runs(read_sweep(files))]
    return {(run.settings["partition"], run.chosen["case"]): run.settings for run in runs}


def check_row(settings: Mapping[str, Any], setting: str, row: str) -> None:
    """Raise UserError where a run has other values than this row of the setting's sweeps."""
    rows, partition = rows_of(SETTINGS[setting], tuple(SWEEPS[setting])), settings["partition"]
    if (partition, row) not in rows:
        allowed = ", ".join(dict.fromkeys(name for name, _ in rows))
        raise UserError(f"partition = {partition!r}: allowed for {setting!r} is one of {allowed}")
    free = FREE | ({"cut-layer"} if row in WHOLE else set()) | ({"alpha"} if partition == IID else set())
    free |= {key for key in VARIED if key.startswith("split.")} if row == "FedAvg" else set()
    for key in sorted(VARIED - free):
        if settings[key] != (planned := rows[partition, row][key]):
            raise UserError(f"{key} = {settings[key]!r}: allowed is {planned!r} for {row} of {setting!r}")


def who_of(run: FinishedRun) -> dict[str, Any]:
    """Return which run it is, by the columns of the CSV; UserError for one of no table."""
    try:
        setting, row = setting_of(run.settings), row_of(run.settings)
        check_row(run.settings, setting, row)
        return {
            "setting": setting,
            "partition": run.settings["partition"],
            "row": row,
            "seed": run.settings["seed"],
        }
    except UserError as error:
        raise UserError(f"{run.folder}: {error}") from None


def line_of(run: FinishedRun) -> Line:
    """Return the line of a run that is over."""
    evaluated = [line for line in ResultsFolder(run.folder).read_metrics() if line["scope"] == "global"]
    of_rounds = [line[ACCURACY]["mean"] for line in evaluated if ACCURACY in line]
    last = ResultsFolder(run.folder).read_json("summary.json")["global"]
    sent: dict[str, Any] = {key: run.figures[key] for key in ("uplink_bytes", "downlink_bytes")}
    return Line(
        **who_of(run),
        accuracy=last[ACCURACY]["mean"],
        over_clients=last[ACCURACY]["std"],
        loss=last[LOSS]["mean"],
        best_accuracy=max(of_rounds),
        **sent,
        commit=run.made_by["commit"],
        machine=run.made_by["machine"],
    )


def print_table(lines: Sequence[Line], setting: str, partition: str) -> None:
    """Print a row for each algorithm and cut."""
    print(f"\n{setting}, {'IID' if partition == IID else f'Dir(0.1) ({partition})'}")
    print(f"{'':<12}{'runs':>4}{'accuracy':>19}{'best round':>19}{'paper':>16}{'loss':>19}{'MB up / down':>16}")
    for row, published in PAPER.items():
        found = [line for line in lines if (line.setting, line.partition, line.row) == (setting, partition, row)]
        if found:
            up, down = (fmean(getattr(line, key) for line in found) / 1e6 for key in ("uplink_bytes", "downlink_bytes"))
            print(
                f"{row:<12}{len(found):>4}{spread([line.accuracy for line in found])}"
                f"{spread([line.best_accuracy for line in found])}{range_of(published[partition != IID]):>16}"
                f"{spread([line.loss for line in found])}{f'{up:,.0f} / {down:,.0f}':>16}"
            )


def range_of(published: Sequence[float]) -> str:
    """Return a published figure, or the least and the most of some."""
    least, most = min(published), max(published)
    return f"{least:.4f}" if least == most else f"{least:.4f}-{most:.4f}"


def main() -> None:
    """Measure what is new, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="*", metavar="FOLDER", help="of a sweep, or of a finished run")
    parser.add_argument("--csv", type=Path, required=True, help="the lines of all runs")
    given = parser.parse_args()
    lines = lines_with(
        Line, given.csv, given.folders, lambda run: tuple(who_of(run).values()), lambda run: [line_of(run)]
    )
    for setting in SETTINGS:
        for partition in dict.fromkeys(line.partition for line in sorted(lines, reverse=True)):
            if any((line.setting, line.partition) == (setting, partition) for line in lines):
                print_table(lines, setting, partition)


if __name__ == "__main__":
    run_script(main)
