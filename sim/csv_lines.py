"""The lines of a CSV file, each with the place that an error names."""

import csv
from collections.abc import Iterator
from pathlib import Path


def csv_lines(path: Path) -> tuple[list[str], Iterator[tuple[str, list[str]]]]:
    """Return the words of the first line, and where they are and the words of the others but the empty ones.

    Raises
    ------
    ValueError
        If it is no CSV file.
    OSError
        If it can't be read.
    """
    try:
        lines = list(csv.reader(path.read_text(encoding="utf-8-sig").splitlines()))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is no CSV file: {error}") from None
    columns = [word.strip() for word in lines[0]] if lines else []
    return columns, ((f"{path}, line {n}", words) for n, words in enumerate(lines[1:], start=2) if words)
