"""Records of finished runs: CSV files of lines, to which what is measured of a run is added once."""

import sys
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, Protocol, TypeVar

from espalier.app.comparison.command import finished_runs
from espalier.app.comparison.runs import FinishedRun
from espalier.app.config.parse import read_toml
from espalier.app.ground.errors import UserError
from espalier.app.ground.logs import quiet_flower
from experiments.records import read_rows, write_rows


class Line(Protocol):
    """A line: a named tuple whose fields are the columns, of one of several runs."""

    @property
    def run(self) -> Hashable:
        """Which run it is of."""
        ...

    def _asdict(self) -> dict[str, Any]: ...

    def __lt__(self, other: Any, /) -> bool: ...


L = TypeVar("L", bound=Line)


def read_lines(kind: type[L], path: Path) -> list[L]:
    """Return the lines of a CSV; none where there is no such file."""
    return [kind(**row) for row in read_rows(path, kind.__annotations__)]


def write_lines(kind: type[L], path: Path, lines: Iterable[L]) -> None:
    """Write the lines of a CSV, sorted."""
    write_rows(path, kind.__annotations__, [line._asdict() for line in sorted(lines)])


def spread(values: Sequence[float]) -> str:
    """Return mean and standard deviation, of one value that value alone."""
    return f"{f'{fmean(values):.4f}' + (f' +- {pstdev(values):.4f}' if len(values) > 1 else ''):>19}"


def differences(settings: Mapping[str, Any], file: Path, varied: Collection[str]) -> dict[str, Any]:
    """Return the keys of a settings file whose values a run does not have, with those of the file.

    Parameters
    ----------
    settings : Mapping[str, Any]
        The run's, by key.
    file : Path
        The settings file.
    varied : Collection[str]
        Keys in which the runs may differ from it.
    """
    fixed = read_toml(file)
    return {key: value for key, value in fixed.items() if key not in varied and settings[key] != value}


def lines_with(
    kind: type[L],
    path: Path,
    folders: Sequence[Path],
    run_of: Callable[[FinishedRun], Hashable],
    lines_of: Callable[[FinishedRun], Iterable[L]],
) -> list[L]:
    """Return the lines of a CSV after those of new runs are added; ends the process with a line where it can't.

    Parameters
    ----------
    kind : type
        Of the lines.
    path : Path
        The CSV; it is written after each run.
    folders : Sequence[Path]
        Of sweeps, or of finished runs.
    run_of : Callable[[FinishedRun], Hashable]
        Gives the ``run`` that the lines of a run have.
    lines_of : Callable[[FinishedRun], Iterable]
        Measures a run.
    """
    quiet_flower()
    try:
        lines = read_lines(kind, path)
        runs: dict[Hashable, FinishedRun] = {}
        for run in finished_runs([folder.absolute() for folder in folders]):
            if (first := runs.setdefault(run_of(run), run)) is not run:
                same = f"{run.folder}: is {run_of(run)}, and so is {first.folder}"
                raise UserError(f"{same}; allowed are runs that the CSV tells apart")
        recorded = {line.run for line in lines}
        for key, run in runs.items():
            if key in recorded:
                print(f"{run.folder}: {key} is in {path} already", file=sys.stderr)
                continue
            lines += lines_of(run)
            write_lines(kind, path, lines)
    except UserError as error:
        sys.exit(f"error: {error}")
    if not lines:
        sys.exit(f"error: {path}: holds no lines; give folders of finished runs")
    return lines
