"""Which runs a page shows: those in folders of runs, and in folders of such."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from espalier.app.ground.errors import UserError
from espalier.app.page.run_data import Data, RunReader, differing
from espalier.app.reports.folder import CONFIG, runs_below

MOST_ROWS = 200_000  # clients of all runs of a page; of those that come later single clients are left out


@dataclass
class Runs:
    """The runs of a page.

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

    def refresh(self) -> bool:
        """Read what is new, and return whether there is anything.

        Raises
        ------
        UserError
            If a folder holds no run, or a run's files are not those that it writes.
        """
        paths = [path for folder in self.folders for path in runs_in(folder)]
        named = labels({path: self.names.get(path, path.name) for path in paths})
        is_new = self._readers.keys() != named.keys()
        self._readers = {path: self._readers.get(path) or RunReader(path, label) for path, label in named.items()}
        for path, reader in self._readers.items():
            reader.label = named[path]
            is_new |= reader.refresh()
        return is_new

    def data(self) -> list[Data]:
        """Return what the page says of each run; UserError as of `refresh`."""
        told: list[Data] = []
        rows = 0
        for reader in self._readers.values():
            told.append(reader.data(with_clients=rows < MOST_ROWS))
            rows += told[-1]["num_clients"]
        for own, differs in zip(told, differing([dict(own["settings"]) for own in told]), strict=True):
            own["differs"] = differs
        return told


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
        raise UserError(f"FOLDER = {str(folder)!r}: allowed is the results folder of a run, or one that holds such")
    return found


def labels(names: Mapping[Path, str]) -> dict[Path, str]:
    """Return what runs are called: by their names, and with their paths where several have one name, or none."""
    counts = Counter(names.values())
    return {path: name if name and counts[name] == 1 else f"{name} {path}".strip() for path, name in names.items()}
