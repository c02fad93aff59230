"""In what runs differ, and which are the same but for the seed."""

import csv
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from espalier.app.comparison.runs import FinishedRun
from espalier.app.comparison.spread import OverSeeds, over_seeds
from espalier.app.config.defaults import without_defaults
from espalier.app.config.keys import keys_tagged
from espalier.app.config.parse import parse_saved
from espalier.app.ground.errors import UserError
from espalier.app.ground.regular_files import read_text
from espalier.app.settings.section import Tag

CASE = "case"  # the column of a sweep's table with the name of a run's case
RUNS = "runs.csv"
PLAIN = keys_tagged(Tag.SPEAKS) | {CASE}


@dataclass(frozen=True)
class Group:
    """Runs of one setting, which differ in the seed alone.

    Parameters
    ----------
    chosen : Mapping[str, Any]
        The setting: the values of the keys in which the compared runs differ.
    runs : Sequence[FinishedRun]
        At least one.
    """

    chosen: Mapping[str, Any]
    runs: Sequence[FinishedRun]

    @property
    def label(self) -> str:
        """The setting in words."""
        return ", ".join(words(key, value) for key, value in self.chosen.items()) or "all"

    def figure(self, name: str) -> OverSeeds | None:
        """Return a figure over the runs; None where one lacks it."""
        values = [run.figures.get(name) for run in self.runs]
        numbers = [value for value in values if value is not None]
        return over_seeds(numbers) if len(numbers) == len(values) else None


def words(key: str, value: Any) -> str:
    """Return a setting in words: names of algorithms and data speak for themselves, other values do not."""
    return str(value) if key in PLAIN and value else f"{key.rpartition('.')[2].replace('-', ' ')} {value}"


def grouped(runs: Sequence[FinishedRun]) -> list[Group]:
    """Return runs by their settings, in the order in which they came."""
    settings, cases = [_setting(run) for run in runs], _cases(runs)
    keys = [key for key in settings[0] if len({repr(own.get(key)) for own in settings}) > 1]
    if any(cases):
        values_of_case: dict[str, dict[str, set[str]]] = {case: {key: set() for key in keys} for case in cases}
        for case, own in zip(cases, settings, strict=True):
            for key in keys:
                values_of_case[case][key].add(repr(own[key]))
        keys = [key for key in keys if any(len(values[key]) > 1 for values in values_of_case.values())]
    groups: dict[str, tuple[dict[str, Any], list[FinishedRun]]] = {}
    for run, case, own in zip(runs, cases, settings, strict=True):
        chosen = ({CASE: case} if case else {}) | {key: own[key] for key in keys}
        groups.setdefault(repr(chosen), (chosen, []))[1].append(run)
    return [Group(chosen, members) for chosen, members in groups.values()]


def chosen_before(folder: Path, keys: Collection[str]) -> dict[Path, dict[str, str]]:
    """Return which of the cases, and of the values of some keys, sweeps have chosen for runs, by the runs' folders.

    Raises
    ------
    UserError
        If the folder's table of runs can't be read.
    """
    try:
        return {
            folder / Path(line["folder"]).name: {
                key: value for key, value in line.items() if value and (key == CASE or key in keys)
            }
            for line in csv.DictReader(StringIO(read_text(folder / RUNS), newline=""))
        }
    except FileNotFoundError:
        return {}
    except (OSError, KeyError, TypeError, ValueError, csv.Error):
        raise UserError(f"{folder / RUNS}: can't be read; allowed is the table that a sweep wrote, or none") from None


def chosen_if_readable(folder: Path) -> dict[Path, dict[str, str]]:
    """Return which cases sweeps have chosen for runs; nothing for a table that is no sweep's."""
    try:
        return chosen_before(folder, ())
    except UserError:
        return {}


def without_repeats(runs: Sequence[FinishedRun]) -> tuple[list[FinishedRun], dict[Path, Path]]:
    """Return runs of which no two are of one setting and seed, and those left out, each by the one that it repeats."""
    first: dict[str, FinishedRun] = {}
    repeated: dict[Path, Path] = {}
    for run, case in zip(runs, _cases(runs), strict=True):
        kept = first.setdefault(repr((_setting(run), case, run.settings["seed"])), run)
        if kept is not run:
            repeated[run.folder] = kept.folder
    return list(first.values()), repeated


def _cases(runs: Sequence[FinishedRun]) -> list[str]:
    """Return the runs' cases; none where there is a run that is of no case, as settings alone tell them apart then."""
    chosen = {folder: chosen_if_readable(folder) for folder in {run.folder.parent for run in runs}}
    cases = [chosen[run.folder.parent].get(run.folder, {}).get(CASE, "") for run in runs]
    return cases if all(cases) else [""] * len(cases)


def _setting(run: FinishedRun) -> dict[str, Any]:
    values = without_defaults(run.settings, parse_saved)
    return {key: value for key, value in values.items() if key not in keys_tagged(Tag.HOW, Tag.BESIDE)}
