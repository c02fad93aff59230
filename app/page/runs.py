"""Which runs a page shows: those in folders of runs, and in folders of such."""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from espalier.app.ground.errors import UserError, bad_value
from espalier.app.page.run_data import Data, RunReader, differing
from espalier.app.reports.folder import CONFIG, runs_below

MOST_ROWS = 200_000  # clients of all runs of a page; of those that come later single clients are left out


@dataclass
class Runs:
    """The runs of a page. In a folder of several, damaged ones are left out with a line on standard error.

    Parameters
    ----------
    folders : Sequence[Path]
        Folders of runs, or of runs' folders, in which more may appear.
    names : Mapping[Path, str] (default: those of the folders)
        What the page calls runs.
    """

    folders: Sequence[Path]
    names: Mapping[Path, str] = field(default_factory=dict)
    _readers: dict[Path, RunReader] = field(default_factory=dict, init=False)
    _told: set[str] = field(default_factory=set, init=False)  # of those that are left out

    def refresh(self) -> bool:
        """Read what is new, and return whether there is anything.

        Raises
        ------
        UserError
            If a folder holds no run, or the files of one that `folders` names are not those that a run writes.
        """
        paths = [path for folder in self.folders for path in runs_in(folder)]
        named = labels({path: self.names.get(path, path.name) for path in paths})
        is_new = False
        readers: dict[Path, RunReader] = {}
        for path, label in named.items():
            reader = self._readers.get(path) or RunReader(path, label)
            reader.label = label
            with self._left_out_if_damaged(path):
                is_new |= reader.refresh()
                readers[path] = reader
        is_new |= self._readers.keys() != readers.keys()
        self._readers = readers
        return is_new

    def data(self) -> list[Data]:
        """Return what the page says of each run; UserError as of `refresh`, or if all are left out."""
        told: list[Data] = []
        rows = 0
        for path, reader in self._readers.items():
            with self._left_out_if_damaged(path):
                told.append(reader.data(with_clients=rows < MOST_ROWS))
                rows += told[-1]["num_clients"]
        if not told:
            raise no_run_in(*self.folders)
        for own, differs in zip(told, differing([dict(own["settings"]) for own in told]), strict=True):
            own["differs"] = differs
        return told

    @contextmanager
    def _left_out_if_damaged(self, path: Path) -> Iterator[None]:
        """Say once that a run's files are damaged; UserError of a run that `folders` names."""
        try:
            yield
        except UserError as error:
            if path in self.folders:
                raise
            if str(error) not in self._told:
                print(f"left out: {error}", file=sys.stderr)
            self._told.add(str(error))


def runs_in(folder: Path) -> list[Path]:
    """Return the folder of a run, or those in a folder of several, by their names and numbers.

    Raises
    ------
    UserError
        If there is none.
    """
    if (folder / CONFIG).exists():
        return [folder]
    found = runs_below(folder)
    if not found:
        raise no_run_in(folder)
    return found


def no_run_in(*folders: Path) -> UserError:
    """Return the error for folders without a run that a page can show."""
    return bad_value("FOLDER", " ".join(map(str, folders)), "the results folder of a run, or one that holds such")


def labels(names: Mapping[Path, str]) -> dict[Path, str]:
    """Return what runs are called: by their names, and with their paths where several have one name, or none."""
    counts = Counter(names.values())
    return {path: name if name and counts[name] == 1 else f"{name} {path}".strip() for path, name in names.items()}
