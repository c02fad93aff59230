"""Records of runs: CSV files with a line for each, of which the runs of before need not be made again."""

import csv
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from rich.console import Console
from rich.progress import track

from espalier.app.ground.errors import UserError

Case = TypeVar("Case", bound=Hashable)


def read_rows(path: Path, columns: Mapping[str, type]) -> list[dict[str, Any]]:
    """Return the rows of a CSV file, with values of the columns' types; none where there is no file.

    Raises
    ------
    UserError
        If it has other columns or values.
    """
    if _begins(path):
        return []
    with path.open(newline="", encoding="utf-8") as file:
        try:
            if not path.read_bytes().endswith(b"\n"):
                raise ValueError("its last line was cut off")
            rows = csv.DictReader(file)
            if sorted(rows.fieldnames or ()) != sorted(columns):
                raise ValueError("other columns")
            return [{name: _value(columns[name], text) for name, text in row.items()} for row in rows]
        except (KeyError, TypeError, ValueError, csv.Error):
            allowed = f"a CSV file with the columns {', '.join(columns)}, as the script writes it"
            raise UserError(f"{path}: is damaged, or of another kind; allowed is {allowed}") from None


def _begins(path: Path) -> bool:
    return not path.exists() or path.stat().st_size == 0


def _value(kind: type, text: str | None) -> Any:
    if text is None:
        raise ValueError("a line was cut off")
    return kind(text)


def run_script(main: Callable[[], int | None]) -> NoReturn:
    """Run a script's `main`, and exit; a mistake of the user's is one line."""
    try:
        sys.exit(main())
    except UserError as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        sys.exit(f"error: {error.filename}: {error.strerror}" if error.filename else f"error: {error}")


def append_rows(path: Path, columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Append rows to a CSV file, which is begun if it is not there, and its folder too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    begins = _begins(path)
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(columns), lineterminator="\n")
        if begins:
            writer.writeheader()
        writer.writerows(rows)


def completed(
    path: Path | None,
    columns: Mapping[str, type],
    cases: Iterable[Case],
    case_of: Callable[[dict[str, Any]], Case],
    rows_of: Callable[[Case], list[dict[str, Any]]],
) -> list[dict[str, Any]]:
    """Return the rows of a CSV file, and behind them those of the cases that have none there, which are made now.

    Parameters
    ----------
    path : Path, optional
        The file, which gets the rows of each case when they are made; None: there is none.
    columns : Mapping[str, type]
        Its columns.
    cases : Iterable[Hashable]
        What there are to be rows of.
    case_of : Callable[[dict], Hashable]
        Says of a row which case it is of.
    rows_of : Callable[[Hashable], list[dict]]
        Makes the rows of a case.

    Raises
    ------
    UserError
        If the file has other columns or values.
    """
    rows = read_rows(path, columns) if path else []
    done = set(map(case_of, rows))
    for case in track([case for case in cases if case not in done], console=Console(stderr=True)):
        rows += (new := rows_of(case))
        if path:
            append_rows(path, columns, new)
    return rows


def write_rows(path: Path, columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a CSV file; at once, so that an interruption leaves the file of before."""
    beside = path.with_name(f"{path.name}.part")
    beside.unlink(missing_ok=True)
    append_rows(beside, columns, rows)
    beside.replace(path)
