"""Records of runs: CSV files with a line for each, of which the runs of before need not be made again."""

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def read_rows(path: Path, columns: Mapping[str, type]) -> list[dict[str, Any]]:
    """Return the rows of a CSV file, with values of the columns' types; none where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [{name: columns[name](text) for name, text in row.items()} for row in csv.DictReader(file)]


def append_rows(path: Path, columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Append rows to a CSV file, which is begun if it is not there, and its folder too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    begins = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(columns), lineterminator="\n")
        if begins:
            writer.writeheader()
        writer.writerows(rows)


def write_rows(path: Path, columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a CSV file; at once, so that an interruption leaves the file of before."""
    beside = path.with_name(f"{path.name}.part")
    beside.unlink(missing_ok=True)
    append_rows(beside, columns, rows)
    beside.replace(path)
