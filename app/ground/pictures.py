"""How pictures are drawn: colours, and a figure that is written as a file."""

import math
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from espalier.app.ground.durable import replace_file
from espalier.app.ground.figures import is_number

BLUE, ORANGE, GREY = "#1f6f8b", "#e07a3f", "#8a8a8a"
PALETTE = (BLUE, ORANGE, GREY, "#b4c5a1", "#6d597a", "#e5c185", "#2b2d42", "#d62839", "#8fd3e8")


def save_plot(
    path: Path, title: str, draw: Any, data: Any, *, width: float, height: float = 3.6, rows: int = 1, columns: int = 1
) -> Path:
    """Let `draw` fill a figure's axes, row by row, with `data` and write it; return where to."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    draw(axes, data)
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(axis="y", alpha=0.3)
        ax.set_axisbelow(True)
    figure.suptitle(title, fontsize=10)
    replace_file(path, lambda file: figure.savefig(file, dpi=150, format="png"))
    return path


def number(value: Any) -> float:
    """Return a figure of ``metrics.jsonl`` as it is drawn; what is no number, or was not finite, leaves a gap."""
    return value if is_number(value) else math.nan
