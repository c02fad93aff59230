"""Who was slow: the seconds of clients and edges, by the lines of ``seconds.jsonl``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from espalier.app.features.feature import Feature, Line
from espalier.app.features.seconds import reports


def _draw(folder: Path, title: str, lines: Sequence[Line], world: Mapping[str, Any] | None) -> None:
    from espalier.app.features.seconds.plots import draw_seconds  # which imports Matplotlib

    draw_seconds(folder, title, lines)


SECONDS = Feature(
    name="seconds",
    summary=reports.slowest_summary,
    words=reports.words,
    columns=reports.columns,
    draw=_draw,
)
