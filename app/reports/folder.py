"""The results folder of one run."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from espalier.app.checkpoint import load_state, save_state
from espalier.app.errors import UserError, bad_value

# A resumed run may differ in these. The data are compared by what they hold, wherever they lie.
FREE_TO_CHANGE = frozenset(
    {
        "resume",
        "output-dir",
        "data.cache-dir",
        "data-dir",
        "global-rounds",
        "engine",
        "ray.workers",
        "ray.address",
        "ray.gpus-per-worker",
        "deploy.reply-timeout",
        "deploy.wait-for-nodes",
    }
)


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


def refuse_used(path: Path) -> None:
    """Raise UserError if a folder is there and not empty, or can't be made or written."""
    parent = next(folder for folder in (path, *path.parents) if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        why = "it can't be written" if parent.is_dir() else "it is no folder"
        raise bad_value("output-dir", str(path), f"a folder that can be written ({parent}: {why})")
    try:
        used = any(path.iterdir())
    except OSError:  # it is not there, or can't be written either, which `create` says
        used = False
    if used:
        raise bad_value("output-dir", str(path), "a new or empty folder; to go on with a run, set resume")


class ResultsFolder:
    """Where a run writes.

    ``config.json``, ``world.json`` (where rounds are planned), ``metrics.jsonl`` (a line per edge and global round, and
    a global line), ``state.npz`` (to resume from), and at the end ``summary.json``, ``clients.csv``, ``model.pt`` and
    the plots.

    Parameters
    ----------
    path : Path
        An absolute path; `create` and `reopen` make sure of the rest.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._metrics = path / "metrics.jsonl"
        self._state = path / "state.npz"

    @staticmethod
    def path_for(output_dir: str, default_parent: Path, title: RunTitle) -> Path:
        """Return the folder `output-dir`, or one named after the time and the run in `default_parent`."""
        if output_dir:
            return Path(output_dir).expanduser().absolute()
        path = default_parent / f"{datetime.now():%Y%m%d-%H%M%S}-{title.algorithm}-{title.dataset}-seed{title.seed}"
        while path.exists():  # another run began in the same second
            path = path.with_name(path.name + "+")
        return path

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any]) -> "ResultsFolder":
        """Make a folder with the settings of a run, by their keys.

        Raises
        ------
        UserError
            If it can't be written or holds a run already.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            refuse_used(path)
            # Exclusively: of two runs that start at once in one folder, one is refused.
            with (path / "config.json").open("x", encoding="utf-8") as file:
                json.dump(dict(config), file, indent=2)
        except OSError as error:
            raise bad_value("output-dir", str(path), f"a folder that can be written ({error.strerror})") from None
        return cls(path)

    @classmethod
    def reopen(cls, path: Path, config: Mapping[str, Any]) -> "ResultsFolder":
        """Open a folder to go on with its run.

        Raises
        ------
        UserError
            If it holds no run, or one of another config.
        """
        path = path.expanduser().absolute()
        saved = saved_values(path)
        for key, value in config.items():
            if key not in FREE_TO_CHANGE and value != saved.get(key):
                raise bad_value(key, value, f"{saved.get(key)!r}, as in the run to resume, {path}")
        return cls(path)

    def load_state(self) -> dict[str, Any] | None:
        """Return the state that the last whole round left, None if the run was interrupted before there was one.

        Raises
        ------
        UserError
            If the state is damaged, or missing although rounds were over.
        """
        rounds = [line["round"] for line in self.read_metrics() if line["scope"] == "global"]
        if not self._state.exists():
            if rounds and max(rounds) > 1:
                raise UserError(f"{self._state}: is missing; allowed is a folder as the run left it")
            return None
        try:
            state = load_state(self._state)
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            reason = error.strerror if isinstance(error, OSError) else "is damaged"
            raise UserError(f"{self._state}: {reason}; allowed is the file that the run wrote") from None
        if rounds[: state["round"]] != list(range(1, state["round"] + 1)):
            raise UserError(f"{self._metrics}: lacks rounds; allowed is the file that the run wrote")
        return state

    def go_on_after(self, last_round: int, config: Mapping[str, Any]) -> None:
        """Drop the lines of rounds after `last_round`, whose state was not saved; write the config to go on with."""
        lines = [
            line for line in self.read_metrics() if line["round"] <= last_round and line["scope"] != "personalised"
        ]
        replace_text(self._metrics, "".join(json.dumps(line) + "\n" for line in lines))
        values = {**config, "resume": "", "output-dir": str(self.path)}
        replace_text(self.path / "config.json", json.dumps(values, indent=2) + "\n")

    def save_state(self, state: dict[str, Any]) -> None:
        """Save what a resumed run needs."""
        save_state(self._state, state)

    def append_metrics(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Append lines to ``metrics.jsonl``."""
        with self._metrics.open("a", encoding="utf-8") as file:
            for line in lines:
                file.write(json.dumps(line) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return the lines of ``metrics.jsonl``; a last line that was cut off is left out.

        Raises
        ------
        UserError
            If another line is not one that a run writes.
        """
        if not self._metrics.exists():
            return []
        lines: list[dict[str, Any]] = []
        texts = self._metrics.read_text(encoding="utf-8", errors="replace").splitlines()
        for number, text in enumerate(texts, start=1):
            try:
                line = json.loads(text)
                if not (isinstance(line["round"], int) and isinstance(line["scope"], str)):
                    raise ValueError
            except (ValueError, TypeError, KeyError):
                if number == len(texts):
                    break
                allowed = "allowed is the file that the run wrote"
                raise UserError(f"{self._metrics}: line {number} is damaged; {allowed}") from None
            lines.append(line)
        return lines

    def read_world(self) -> dict[str, Any] | None:
        """Return the content of ``world.json``, None for a run without one.

        Raises
        ------
        UserError
            If it can't be read.
        """
        path = self.path / "world.json"
        if not path.exists():
            return None
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise UserError(f"{path}: is damaged; allowed is the file that the run wrote") from None

    def write_json(self, name: str, content: Any) -> None:
        """Write a JSON file."""
        replace_text(self.path / name, json.dumps(content, indent=2) + "\n")


def replace_text(path: Path, text: str) -> None:
    """Write a file as a whole: an interruption leaves the one that was there."""
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def saved_values(path: Path) -> dict[str, Any]:
    """Return the settings of the run in a results folder, by their keys.

    Raises
    ------
    UserError
        If the folder holds no run.
    """
    try:
        return dict(json.loads((path / "config.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        raise bad_value("resume", str(path), "the results folder of a run, with its config.json") from None
