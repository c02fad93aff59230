"""Which runs a sweep has: every combination of the values that some keys take."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

from espalier.app.comparison.groups import CASE
from espalier.app.config.keys import keys_tagged
from espalier.app.config.parse import flat, parse_config, read_value, toml_tables, toml_value, without_runtime
from espalier.app.config.together import check_strategies
from espalier.app.config.unused import unused_keys
from espalier.app.features.table import FEATURES
from espalier.app.ground.errors import UserError, bad_value, shown
from espalier.app.reports.folder import CONFIG
from espalier.app.reports.saved import saved_config
from espalier.app.settings.section import Tag
from espalier.app.settings.values import between_commas, path_of
from espalier.app.wiring.one_server import checked_task

# Those of the settings that say how a run goes, and not what it gives.
HOW_IT_RUNS = keys_tagged(Tag.HOW)


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep.

    Parameters
    ----------
    name : str
        Made of what was chosen; a folder can have it.
    chosen : Mapping[str, Any]
        The values of the swept keys, and which ``case``.
    given : Mapping[str, Any]
        All values that the sweep gives.
    settings : Mapping[str, Any]
        All settings, with their defaults.
    without_effect : Mapping[str, str] (default: none)
        Why it has no use for what was chosen for a key, by key.
    """

    name: str
    chosen: Mapping[str, Any]
    given: Mapping[str, Any]
    settings: Mapping[str, Any]
    without_effect: Mapping[str, str] = field(default_factory=dict)

    def told_apart_by(self, settings: Mapping[str, Any]) -> str:
        """Return what tells a run with some settings from this sweep's others, as a text; what is swept always does."""
        return json.dumps({k: v for k, v in sorted(settings.items()) if k not in HOW_IT_RUNS or k in self.chosen})

    def is_made_with(self, settings: Mapping[str, Any]) -> bool:
        """Return whether a run with some settings is this one."""
        return self.told_apart_by(settings) == self.told_apart_by(self.settings)


@dataclass
class Sweep:
    """What a command line and its files say of a sweep.

    Parameters
    ----------
    fixed : dict[str, Any]
        Values that all runs have.
    swept : dict[str, list[Any]]
        The values that a key takes.
    cases : dict[str, dict[str, Any]]
        By name: values that go together; every run is of one case, where there are some.
    name : str
        Of the folder in ``results``, by default.
    """

    fixed: dict[str, Any] = field(default_factory=dict)
    swept: dict[str, list[Any]] = field(default_factory=dict)
    cases: dict[str, dict[str, Any]] = field(default_factory=dict)
    name: str = "sweep"

    @property
    def folder(self) -> Path:
        """Where the runs' folders go: `output-dir`, by default one in ``./results`` with the settings file's name."""
        given = self.fixed.get("output-dir", "")
        if not isinstance(given, str):  # a file can say anything
            raise bad_value("output-dir", given, "a string")
        return path_of("output-dir", given) if given else Path.cwd() / "results" / self.name

    def add_values(self, key: str, values: Sequence[Any]) -> None:
        """Let a key take these values, instead of what it took before; one value is the same for all runs."""
        for before in (self.fixed, self.swept, *self.cases.values()):
            before.pop(key, None)
        if len(values) == 1:
            self.fixed[key] = values[0]
        else:
            self.swept[key] = list(values)

    def add_file(self, path: Path) -> None:
        """Take what a settings file says: its keys, and its table ``[sweep]``."""
        tables = toml_tables(path)
        table = tables.pop("sweep", {})
        for key, value in flat(tables).items():
            self.add_values(key, [value])
        if not isinstance(table, dict) or not isinstance(cases := table.pop(CASE, {}), dict):
            raise UserError(f"{path}: allowed is a table [sweep] of keys with lists, and [sweep.{CASE}.NAME] of keys")
        for key, values in flat(table).items():
            self.add_values(key, _some_different(key, values if isinstance(values, list) else [values], values))
        for name, values in cases.items():  # last: they go before the file's other keys
            if not isinstance(values, dict):
                raise bad_value(f"sweep.{CASE}.{name}", values, "a table of keys")
            self.cases[name] = flat(values)
        self.name = path.stem


def read_sweep(arguments: Sequence[str]) -> Sweep:
    """Return the sweep that a command line gives: ``KEY=VALUE,VALUE`` and ``FILE.toml``, later ones win.

    Raises
    ------
    UserError
        If an argument is neither, or a file can't be read.
    """
    sweep = Sweep()
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if equals:
            sweep.add_values(key, read_values(key, text))
        elif argument.endswith(".toml"):
            sweep.add_file(Path(argument))
        else:
            raise UserError(f"argument {shown(argument)}: allowed is KEY=VALUE,VALUE or a FILE.toml")
    return sweep


def read_values(key: str, text: str) -> list[Any]:
    """Return the values in a text, with commas between them.

    A comma in quotes or brackets separates nothing, so that ``FedAdam(eta=0.1, tau=0.2)`` and ``"1,2"`` are one value.
    Brackets around all may be there or not.

    Raises
    ------
    UserError
        If one is missing between two commas, or is there twice.
    """
    value = toml_value(text)
    if isinstance(value, list):
        return _some_different(key, value, text)
    if text.startswith("[") and text.endswith("]"):
        parts = list(between_commas(text[1:-1]))
    else:
        parts = list(between_commas(text)) if value == text else [text]
    if len(parts) > 1 and "" in parts:
        raise bad_value(key, text, "values with a comma between two of them")
    return _some_different(key, [read_value(key, part) for part in parts], text)


def _some_different(key: str, values: Sequence[Any], given: Any) -> list[Any]:
    if not values or len({json.dumps(value, default=str) for value in values}) < len(values):
        raise bad_value(key, given, "one value or more, each once")
    return list(values)


def planned_runs(sweep: Sweep) -> list[PlannedRun]:
    """Return the runs of a sweep, the last key's values one after the other first.

    Raises
    ------
    UserError
        For a key or value of any of them that is not allowed.
    """
    for key in ("resume", "output-dir"):
        if key in sweep.swept or any(key in case for case in sweep.cases.values()) or sweep.fixed.get("resume"):
            allowed = "one folder for all runs" if key == "output-dir" else "none: a sweep resumes its runs by itself"
            raise bad_value(key, sweep.swept.get(key, sweep.fixed.get(key, "")), allowed)
    for name, together in sweep.cases.items():
        if twice := sorted(together.keys() & sweep.swept.keys()):
            raise UserError(f"{twice[0]} is in {CASE} {name!r} and is swept: allowed is one of both")
    runs: list[PlannedRun] = []
    for case in sweep.cases or [""]:
        for values in product(*sweep.swept.values()):
            chosen = ({CASE: case} if case else {}) | dict(zip(sweep.swept, values, strict=True))
            runs.append(_planned(sweep, case, chosen))
    _refuse_twins(runs)
    return runs


def _planned(sweep: Sweep, case: str, chosen: Mapping[str, Any]) -> PlannedRun:
    swept = {key: value for key, value in chosen.items() if key in sweep.swept}
    given = {k: v for k, v in {**sweep.fixed, **sweep.cases.get(case, {}), **swept}.items() if k != "output-dir"}
    try:
        config = parse_config(without_runtime(given))
        check_strategies(config)
    except UserError as error:
        which = ", ".join(f"{k} = {shown(v)}" for k, v in chosen.items() if not str(error).startswith(f"{k} = "))
        raise UserError(f"{which}: {error}" if which else str(error)) from None
    settings = config.as_dict()
    unused = {key: why for key, why in unused_keys(config).items() if key in swept}
    return PlannedRun(run_name({**chosen, "seed": settings["seed"]}), dict(chosen), given, settings, unused)


def run_name(chosen: Mapping[str, Any]) -> str:
    """Return a name for a run that a folder can have."""
    parts = [str(value) if key == CASE else f"{key.rpartition('.')[2]}-{value}" for key, value in chosen.items()]
    written = [re.sub(r"[^A-Za-z0-9.+-]+", "-", part).strip("-.") for part in parts]
    name = "_".join(written)
    # What was left out or is too long for a file's name is told apart by a hash.
    if len(name) <= 150 and all(re.sub(r"[ _]", "-", a) == b for a, b in zip(parts, written, strict=True)):
        return name
    return f"{name[:120]}_{sha256(repr(sorted(chosen.items())).encode()).hexdigest()[:6]}"


def _refuse_twins(runs: Sequence[PlannedRun]) -> None:
    """Raise UserError if two runs are the same."""
    before: dict[str, PlannedRun] = {}
    names: set[str] = set()
    for run in runs:
        twin = before.setdefault(run.told_apart_by(run.settings), run)
        if twin is not run:
            raise UserError(f"{twin.name} and {run.name} are the same run: allowed are values that differ")
        if run.name in names:
            raise UserError(
                f"two runs would have the folder {run.name}: allowed are cases and values whose letters differ"
            )
        names.add(run.name)


def check_data(runs: Sequence[PlannedRun]) -> None:
    """Raise UserError where data, model or trace of some runs can't be had or don't go with their settings.

    Of runs that differ in nothing that matters for data and model the first is looked at.
    """
    seen = []
    for run in runs:
        config = parse_config(without_runtime(run.given))
        federation = config.federation
        for feature in FEATURES:
            feature.check_files(config)
        what = (
            (config.data, config.algorithm, config.split),
            (config.stack, config.train.cuda_graph, config.device),
            (federation.num_clients, federation.cloud_strategy, federation.edge_strategy),
            config.data.task.text and config.train,  # which may not go with an optimizer of the task's own
        )
        if what not in seen:
            seen.append(what)
            checked_task(config)


def run_by_folder(runs: Sequence[PlannedRun], folder: Path) -> dict[Path, PlannedRun]:
    """Return the runs by their folders: the one in `folder` that has a run's settings, or else one of the run's name.

    Raises
    ------
    UserError
        If the folder of a run's name holds another.
    """
    there = {path.parent: _saved(path.parent) for path in sorted(folder.glob("*/config.json"))}
    places: dict[Path, PlannedRun] = {}
    for run in runs:
        same = [path for path, saved in there.items() if saved and run.is_made_with(saved)]
        path = same[0] if same else folder / run.name
        if not same and path in there:
            raise _taken(path, run, there[path] or {})
        places[path] = run
    return places


def check_place(path: Path, run: PlannedRun) -> None:
    """Raise UserError if a folder holds another run, which another sweep has begun there meanwhile."""
    if (path / CONFIG).exists():
        saved = _saved(path) or {}
        if not (saved and run.is_made_with(saved)):
            raise _taken(path, run, saved)


def _taken(path: Path, run: PlannedRun, saved: Mapping[str, Any]) -> UserError:
    """Return the error for a folder of a run that holds another with some settings, none where they are damaged."""
    others = [k for k, v in run.settings.items() if k not in HOW_IT_RUNS and saved.get(k) != v]
    key = others[0] if others else CONFIG
    holds = f"{key} = {shown(saved.get(key))}" if saved else f"a damaged {CONFIG}"
    wants = f", not {shown(run.settings.get(key))}" if saved else ""
    if others == ["global-rounds"] and saved[key] < run.settings[key]:
        wants += f"; to make it longer: espalier resume={shlex.quote(str(path))} {key}={run.settings[key]}"
    return bad_value("output-dir", str(path.parent), f"a folder for other runs: {path.name} in it has {holds}{wants}")


def _saved(path: Path) -> dict[str, Any] | None:
    try:
        return saved_config(path).as_dict()
    except UserError:
        return None
