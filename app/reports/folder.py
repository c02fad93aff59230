"""The results folder of one run."""

import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from espalier.app.config.keys import keys_tagged, values_before
from espalier.app.ground.checkpoint import load_state, save_state
from espalier.app.ground.durable import PART, append_text, make_folder, replace_file, replace_text, sync_folder
from espalier.app.ground.errors import UserError, bad_value
from espalier.app.ground.figures import is_number
from espalier.app.ground.regular_files import open_to_read, read_text
from espalier.app.meters.seconds import Seconds
from espalier.app.reports.owner import LOCK, Ownership, disown, own, why_lost
from espalier.app.reports.run_state import RunState, run_state_of
from espalier.app.settings.section import Tag

CONFIG = "config.json"
METRICS = "metrics.jsonl"
# What a run that was stopped before it had saved its config can leave behind.
BEGUN = frozenset({LOCK, CONFIG + PART})
MOST_OF_A_LINE = 2**28  # bytes, for the figures of a million clients
BAD_LINE = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
INTACT = "allowed is the file that the run wrote"

# A resumed run may differ in these.
FREE_TO_CHANGE = keys_tagged(Tag.MAY_CHANGE, Tag.ENDS, Tag.HOW)


@dataclass(frozen=True)
class RunTitle:
    """What reports call a run.

    Parameters
    ----------
    algorithm, dataset : str
        Their names.
    seed : int
        The run's.
    """

    algorithm: str
    dataset: str
    seed: int


def runs_below(folder: Path) -> list[Path]:
    """Return the folders of runs in a folder, by their names, with the numbers in them as numbers."""

    def key(path: Path) -> list[tuple[int, str]]:
        parts = re.findall(r"\d+|\D+", path.name)
        return [(int(part), "") if part.isdecimal() else (0, part) for part in parts]

    return sorted((path.parent for path in folder.glob(f"*/{CONFIG}")), key=key)


def refuse_unwritable(path: Path) -> None:
    """Raise UserError if a folder can't be made or written."""
    parent = next(folder for folder in (path, *path.parents) if os.path.exists(folder))
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        why = "it can't be written" if parent.is_dir() else "it is no folder"
        raise bad_value("output-dir", str(path), f"a folder that can be written ({parent}: {why})")


def refuse_used(path: Path) -> None:
    """Raise UserError if a folder is there and not empty, or can't be made or written."""
    refuse_unwritable(path)
    try:
        used = bool(set(os.listdir(path)) - BEGUN)
    except OSError:  # it is not there, or can't be read, and `create` says what can't be written
        used = False
    if used:
        raise bad_value("output-dir", str(path), "a new or empty folder; to go on with a run, set resume")


class ResultsFolder:
    """Where a run writes, and nobody else as long as it is open; a context manager that closes it.

    ``config.json``, ``world.json`` and ``radio-trace.csv`` (where rounds are planned), ``metrics.jsonl`` (a line per
    edge and global round, and a global line), ``seconds.jsonl`` (a line per global round), ``state.npz`` (to resume
    from), and at the end ``summary.json``, ``clients.csv``, ``model.pt`` and the plots. Config, metrics and state reach
    the disk in this order, so that a run can be resumed from whatever a power cut leaves; everything is there when the
    folder is closed.

    Parameters
    ----------
    path : Path
        An absolute path; `create` and `reopen` make sure of the rest.
    ownership : Ownership, optional
        Of whoever writes; who only reads needs none.

    Attributes
    ----------
    num_lines : int
        That ``metrics.jsonl`` has, of whoever writes.
    """

    def __init__(self, path: Path, ownership: Ownership | None = None) -> None:
        self.path = path
        self._ownership = ownership
        self._metrics = path / METRICS
        self._seconds = path / "seconds.jsonl"
        self._state = path / "state.npz"
        self.num_lines = 0

    def __enter__(self) -> "ResultsFolder":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._ownership:
            try:
                sync_folder(self.path)
            finally:
                disown(self._ownership)

    @staticmethod
    def path_for(output_dir: str, default_parent: Path, title: RunTitle) -> Path:
        """Return the folder `output-dir`, or one named after the time and the run in `default_parent`."""
        if output_dir:
            return Path(output_dir).expanduser().absolute()
        return default_parent / f"{datetime.now():%Y%m%d-%H%M%S}-{title.algorithm}-{title.dataset}-seed{title.seed}"

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any]) -> "ResultsFolder":
        """Make a folder with the settings of a run, by their keys.

        Raises
        ------
        UserError
            If it can't be written, holds a run already, or another process is about to write one.
        """
        with unopenable_as_user_error("output-dir", path):
            make_folder(path)
            folder = cls(path, own(path, "output-dir"))
            try:
                refuse_used(path)
                folder.write_json(CONFIG, dict(config))
            except BaseException:
                folder.__exit__()
                raise
        return folder

    @classmethod
    def create_beside_others(cls, path: Path, config: Mapping[str, Any]) -> "ResultsFolder":
        """Do as `create` does, in a folder with ``+`` behind its name if another run began in the same second."""
        with unopenable_as_user_error("output-dir", path):
            make_folder(path.parent)
            while True:
                try:
                    path.mkdir()
                    break
                except FileExistsError:
                    path = path.with_name(path.name + "+")
            sync_folder(path.parent)
        return cls.create(path, config)

    @classmethod
    def reopen(cls, path: Path, config: Mapping[str, Any], defaults: Mapping[str, Any]) -> "ResultsFolder":
        """Open a folder to go on with its run.

        Parameters
        ----------
        path : Path
            The folder.
        config : Mapping[str, Any]
            The settings to go on with.
        defaults : Mapping[str, Any]
            By these the run went where its folder does not name a setting, which is newer then.

        Raises
        ------
        UserError
            If it holds no run or one of another config, can't be written, or another process writes to it.
        """
        path = path.expanduser().absolute()
        saved_values(path)  # before a lock is left in a folder that is no run's
        with unopenable_as_user_error("resume", path):
            folder = cls(path, own(path, "resume"))
        try:
            saved = {**defaults, **saved_values(path)}
            if key := changed_setting(config, saved):
                raise bad_value(key, config[key], f"{saved.get(key)!r}, as in the run to resume, {path}")
        except BaseException:
            folder.__exit__()
            raise
        return folder

    def load_state(self) -> RunState | None:
        """Return the state that the last whole round left, None if the run was interrupted before there was one.

        Raises
        ------
        UserError
            If the state is damaged, or missing although rounds were over.
        """
        lines, damaged = self._read_lines(self._metrics)
        rounds = [line["round"] for line in lines if line["scope"] == "global"]
        try:
            state = run_state_of(load_state(self._state))
        except FileNotFoundError:
            if rounds and max(rounds) > 1:
                raise UserError(f"{self._state}: is missing; allowed is a folder as the run left it") from None
            return None
        except OSError as error:
            raise unreadable(self._state, error) from None
        except ValueError as error:
            raise self.other_state(f"is damaged: {error}") from None
        done = [number for number in rounds if number <= state.round]
        if len(done) != state.round or done != list(range(1, state.round + 1)):
            what = f"line {len(lines) + 1} is damaged" if damaged else "lacks rounds, or has some twice"
            raise UserError(f"{self._metrics}: {what}; {INTACT}")
        there = len(_lines_until(state.round, lines))
        if state.lines and there != state.lines:
            what = f"has {there} lines up to round {state.round}, not {state.lines}"
            raise UserError(f"{self._metrics}: {what}; {INTACT}")
        return state

    def other_state(self, why: str) -> UserError:
        """Return the error for a state that is not one of the run's."""
        return UserError(f"{self._state}: {why}; {INTACT}")

    def go_on_after(self, last_round: int, config: Mapping[str, Any]) -> None:
        """Drop the lines of rounds after `last_round`, whose state was not saved; write the config to go on with."""
        self._check_owner()
        lines = _lines_until(last_round, self._read_lines(self._metrics)[0])
        self.num_lines = len(lines)
        replace_text(self._metrics, "".join(json.dumps(line) + "\n" for line in lines))
        of_seconds = [line for line in self.read_seconds() if line["round"] <= last_round]
        replace_text(self._seconds, "".join(json.dumps(line) + "\n" for line in of_seconds))
        self.write_json(CONFIG, {**config, "resume": "", "output-dir": str(self.path)})
        sync_folder(self.path)  # the lines to come go into the new file, and a state must not be there without them

    def save_state(self, state: RunState) -> None:
        """Save what a resumed run needs."""
        self._check_owner()
        save_state(self._state, state.as_data())

    def append_metrics(self, lines: Collection[Mapping[str, Any]]) -> None:
        """Append lines to ``metrics.jsonl``."""
        self._check_owner()
        append_text(self._metrics, "".join(json.dumps(line) + "\n" for line in lines))
        self.num_lines += len(lines)

    def append_seconds(self, line: Mapping[str, Any]) -> None:
        """Append a line to ``seconds.jsonl``; before those of its round in ``metrics.jsonl``."""
        self._check_owner()
        append_text(self._seconds, json.dumps(line) + "\n")

    def read_seconds(self) -> list[dict[str, Any]]:
        """Return the lines of ``seconds.jsonl`` up to the first that is damaged; none where there is no such file.

        A run goes on without any of them: they only tell how long it took.

        Raises
        ------
        UserError
            If it can't be read.
        """
        return self._read_lines(self._seconds)[0]

    def read_all_lines(self) -> list[dict[str, Any]]:
        """Return the lines of ``metrics.jsonl``, and behind them those of ``seconds.jsonl``; raises as both do."""
        return [*self.read_metrics(), *self.read_seconds()]

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return the lines of ``metrics.jsonl``; a last line that was cut off is left out.

        Raises
        ------
        UserError
            If it can't be read, or another line is not one that a run writes.
        """
        lines, damaged = self._read_lines(self._metrics)
        if damaged > 1:
            raise UserError(f"{self._metrics}: line {len(lines) + 1} is damaged; {INTACT}")
        return lines

    def read_json(self, name: str) -> Any:
        """Return the content of a JSON file, None where there is none; UserError if it can't be read."""
        path = self.path / name
        try:
            return json.loads(read_text(path))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unreadable(path, error) from None
        except (ValueError, RecursionError):
            raise damaged(path) from None

    def write_json(self, name: str, content: Any) -> None:
        """Write a JSON file."""
        self._check_owner()
        replace_text(self.path / name, json.dumps(content, indent=2) + "\n")

    def write_file(self, name: str, write: Callable[[BinaryIO], object]) -> None:
        """Write another file, as a whole; `write` gets it open."""
        self._check_owner()
        replace_file(self.path / name, write)

    def _check_owner(self) -> None:
        """Raise UserError if the folder was this process's and is no longer: another may write there."""
        if self._ownership and (why := why_lost(self._ownership)):
            raise UserError(f"{self.path}: is no longer this run's: {why}; it stops, and its saved rounds stay")

    def _read_lines(self, path: Path) -> tuple[list[dict[str, Any]], int]:
        """Return the lines of a file up to the first that is damaged, and how many follow: 0, 1 or more.

        A power cut can damage several: the file has its new size, and not yet all that was written.
        """
        lines: list[dict[str, Any]] = []
        try:
            with open_to_read(path) as file:
                while data := file.readline(MOST_OF_A_LINE):
                    try:
                        lines.append(line_of(data))
                    except BAD_LINE:
                        return lines, 2 if file.read(1) else 1
        except FileNotFoundError:
            pass
        except OSError as error:
            raise unreadable(path, error) from None
        return lines, 0


def fixed_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a resumed run must not change, by key."""
    falls = config.get("train.schedule", "constant") != "constant"  # of learning rates, over the global rounds
    free = FREE_TO_CHANGE - ({"global-rounds"} if falls else set())
    return {key: value for key, value in config.items() if key not in free}


def changed_setting(config: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    """Return the first key whose value a resumed run must not change and has changed; an empty text for none."""
    return next((key for key, value in fixed_settings(config).items() if value != before.get(key)), "")


def line_of(data: bytes) -> dict[str, Any]:
    """Return a line of ``metrics.jsonl`` or ``seconds.jsonl``; one of `BAD_LINE` if a run does not write it so."""
    line: dict[str, Any] = json.loads(data)
    if not (type(line["round"]) is int and isinstance(line["scope"], str)):
        raise ValueError
    if line["scope"] in CHECKS:
        CHECKS[line["scope"]](line)
    return line


def _check_global(line: Mapping[str, Any]) -> None:
    counts = [n for tier in line["bytes"].values() for kinds in tier.values() for n in kinds.values()]
    numbers = (*counts, line["failures"], line["wall_seconds"])
    if not all(map(is_number, numbers)):
        raise TypeError
    if not all(isinstance(line.get(key, {}), dict) for key in ("test", "energy_joules")):
        raise TypeError
    _check_failures(line.get("evaluation_failures", ()))
    _check_clients(line.get("clients", {}))


def _check_personalised(line: Mapping[str, Any]) -> None:
    _check_clients(line["clients"])
    _check_failures(line["failures"])
    line["bytes"]


def _check_failures(failures: Sequence[Mapping[str, Any]]) -> None:
    for failure in failures:
        failure["client"]


def _check_clients(clients: Mapping[str, Mapping[str, Any]]) -> None:
    for client, figures in clients.items():
        int(client)
        if not all(figure is None or is_number(figure) or isinstance(figure, list) for figure in figures.values()):
            raise TypeError


def _check_edge(line: Mapping[str, Any]) -> None:
    _check_failures(line["failures"])


def _check_seconds(line: Mapping[str, Any]) -> None:
    if not isinstance(line["clients"], dict) or not isinstance(line["edges"], dict):
        raise TypeError
    for client, took in line["clients"].items():
        int(client), took["edge"]
    for took in (*line["clients"].values(), *line["edges"].values()):
        Seconds.from_data(took)


# By scope, what raises one of `BAD_LINE` for a line that could not be read later.
CHECKS = {
    "global": _check_global,
    "edge": _check_edge,
    "seconds": _check_seconds,
    "personalised": _check_personalised,
}


def _lines_until(last_round: int, lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the lines of edge and global rounds, up to a global round."""
    return [line for line in lines if line["round"] <= last_round and line["scope"] != "personalised"]


def unreadable(path: Path, error: OSError) -> UserError:
    """Return the error for a file of a results folder that can't be read."""
    return UserError(f"{path}: can't be read ({error.strerror or error}); allowed is a file that you may read")


def damaged(path: Path) -> UserError:
    """Return the error for a file of a results folder that does not hold what a run writes."""
    return UserError(f"{path}: is damaged; {INTACT}")


@contextmanager
def unopenable_as_user_error(key: str, path: Path) -> Iterator[None]:
    """Make a UserError of an error from opening the results folder that a run-config key names."""
    try:
        yield
    except OSError as error:
        raise bad_value(key, str(path), f"a folder that can be written ({error.strerror or error})") from None


def saved_values(path: Path) -> dict[str, Any]:
    """Return the settings of the run in a results folder, by their keys, and what runs did before newer ones existed.

    Raises
    ------
    UserError
        If the folder holds no run, or its config is damaged.
    """
    try:
        values = json.loads(read_text(path / CONFIG))
    except OSError as error:
        allowed = f"the results folder of a run, with its config.json ({error.strerror or error})"
        raise bad_value("resume", str(path), allowed) from None
    except (ValueError, RecursionError):
        raise damaged(path / CONFIG) from None
    if not isinstance(values, dict):
        raise damaged(path / CONFIG)
    if lost := sorted(keys_tagged(Tag.FIRST) - values.keys()):
        raise UserError(f"{path / CONFIG}: lacks {lost[0]!r}; {INTACT}")
    return values_before() | values
