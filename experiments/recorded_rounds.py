"""Records of the rounds of finished runs: accuracy on the test pool over rounds, and over the bytes that were sent."""

import argparse
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from espalier.app.comparison.runs import FinishedRun
from espalier.app.ground.errors import UserError
from espalier.app.reports.folder import ResultsFolder
from espalier.app.sweeps.grid import planned_runs, read_sweep
from experiments.recorded_runs import differences, lines_with


class RoundLine(NamedTuple):
    """A line of the CSV: a global round of a run."""

    row: str
    seed: int
    round: int
    accuracy: float
    bytes: int  # up and down over all links, of all rounds so far
    commit: str
    machine: str

    @property
    def run(self) -> tuple[str, int]:
        """Which run it is of."""
        return self.row, self.seed


@dataclass(frozen=True)
class Rows:
    """The rows of a table, as a sweep makes them.

    Parameters
    ----------
    settings : Path
        The settings file of the sweep.
    cases : Path
        The sweep file, with a case for each row.
    varied : tuple[str, ...]
        Keys by which rows are told apart.
    """

    settings: Path
    cases: Path
    varied: tuple[str, ...]

    @cached_property
    def planned(self) -> dict[str, Mapping[str, Any]]:
        """The settings of each row, in the table's order."""
        runs = planned_runs(read_sweep([str(self.settings), str(self.cases), "data-dir=."]))
        return {run.chosen["case"]: run.settings for run in runs}

    def row_of(self, run: FinishedRun) -> str:
        """Return the row that a run is of; raises UserError where there is none."""
        own = {key: run.settings[key] for key in self.varied}
        for row, settings in self.planned.items():
            if all(settings[key] == value for key, value in own.items()):
                return row
        said = ", ".join(f"{key} = {value!r}" for key, value in own.items())
        raise UserError(f"{run.folder}: {said}: allowed are those of a row of {self.cases.name}")


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Return what reads the folders and the CSV that a script is given."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("folders", type=Path, nargs="*", help="finished runs, or the sweep's folder")
    parser.add_argument("--csv", type=Path, required=True)
    return parser


def rounds_with(
    path: Path,
    folders: Sequence[Path],
    settings: Path,
    varied: Collection[str],
    row_of: Callable[[FinishedRun], str],
) -> list[RoundLine]:
    """Return the lines of a CSV after those of new runs are added; ends the process with a line where it can't.

    Parameters
    ----------
    path : Path
        The CSV.
    folders : Sequence[Path]
        Of sweeps, or of finished runs.
    settings : Path
        The settings file of the runs.
    varied : Collection[str]
        Keys in which they may differ from it.
    row_of : Callable[[FinishedRun], str]
        Gives the row of a table that a run is of; raises UserError where there is none.
    """

    def run_of(run: FinishedRun) -> tuple[str, int]:
        if differing := differences(run.settings, settings, varied):
            key, value = next(iter(differing.items()))
            raise UserError(f"{run.folder}: {key} = {run.settings[key]!r}: allowed is {value!r}, as in {settings.name}")
        return row_of(run), run.settings["seed"]

    def lines_of(run: FinishedRun) -> list[RoundLine]:
        lines, sent = [], 0
        for one in ResultsFolder(run.folder).read_metrics():
            if one["scope"] == "global":
                sent += sum(n for tier in one["bytes"].values() for kinds in tier.values() for n in kinds.values())
                figures = (one["round"], round(one["test"]["accuracy"], 4), sent)
                lines.append(RoundLine(*run_of(run), *figures, run.made_by["commit"], run.made_by["machine"]))
        return lines

    return lines_with(RoundLine, path, folders, run_of, lines_of)


def by_run(lines: Sequence[RoundLine], rows: Sequence[str]) -> dict[tuple[str, int], list[RoundLine]]:
    """Return the rounds of each run, in their order; runs in that of `rows`."""
    runs = sorted({line.run for line in lines}, key=lambda run: (rows.index(run[0]), run[1]))
    return {run: sorted(line for line in lines if line.run == run) for run in runs}


def mean_of(values: Sequence[float], digits: int) -> str:
    """Return mean and standard deviation over seeds, of one value that value alone."""
    return f"{fmean(values):.{digits}f}" + (f"±{stdev(values):.{digits}f}" if len(values) > 1 else "")
