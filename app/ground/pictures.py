"""How pictures are drawn: colours, and a figure that is written as a PNG and a PDF file."""

import math
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from espalier.app.ground.durable import replace_file
from espalier.app.ground.figures import is_number

BLUE, ORANGE, GREY = "#1f6f8b", "#e07a3f", "#8a8a8a"
PALETTE = (BLUE, ORANGE, GREY, "#b4c5a1", "#6d597a", "#e5c185", "#2b2d42", "#d62839", "#8fd3e8")
SEEN = 0.01  # of the height of a picture's tallest part: what is less high can't be seen
TITLE_POINTS = 10
LONGEST_NAME = 16  # characters of a name beside a picture, or under it
CHARACTERS_PER_INCH = 13  # of a title of that size, with some room to spare
STYLE: Any = {  # for rc_context, which lists all names there are in its type
    "pdf.fonttype": 42,  # publishers refuse Type 3
    "text.parse_math": False,  # a $ in a name is no formula
}
# No date in the file: the same run gives the same bytes.
FORMATS: dict[str, Any] = {"png": {}, "pdf": {"metadata": {"CreationDate": None}}}


def save_plot(
    path: Path, title: str, draw: Any, data: Any, *, width: float, height: float = 3.6, rows: int = 1, columns: int = 1
) -> Path:
    """Let `draw` fill a figure's axes, row by row, with `data` and write it, beside it as PDF; return where to."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        # Before `draw`, which may ask where on the page things will be.
        figure.suptitle(fill(title, int(width * CHARACTERS_PER_INCH)), fontsize=TITLE_POINTS)
        for ax in axes:
            ax.spines[["top", "right"]].set_visible(False)
            ax.grid(axis="y", alpha=0.3)
            ax.set_axisbelow(True)
        draw(axes, data)
        return write_picture(path, figure, dpi=150)


def write_picture(path: Path, figure: Figure, *, dpi: float) -> Path:
    """Write a figure to a path that ends with ``.png``, and as PDF beside it; return the path."""
    for ending, options in FORMATS.items():
        save = partial(figure.savefig, dpi=dpi, format=ending, **options)
        replace_file(path.with_suffix(f".{ending}"), save)
        figure.set_layout_engine("none")  # things stay where they were put for the first file
    return path


def number(value: Any) -> float:
    """Return a figure of ``metrics.jsonl`` as it is drawn; what is no number, or was not finite, leaves a gap."""
    return value if is_number(value) else math.nan


def shortened(name: str) -> str:
    """Return a name as there is room for it beside a picture."""
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
