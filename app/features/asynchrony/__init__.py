"""Tiers that do not wait for their slowest."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from espalier.app.features.asynchrony.checks import (
    check,
    check_files,
    check_strategies,
    out_of_step,
    splits_edges,
    without_use,
)
from espalier.app.features.asynchrony.reports import asynchronous_summary, words
from espalier.app.features.asynchrony.settings import Asynchrony
from espalier.app.features.asynchrony.tiers import asynchronous_run
from espalier.app.features.feature import Feature, Line


def _draw(folder: Path, title: str, lines: Sequence[Line], world: Mapping[str, Any] | None) -> None:
    from espalier.app.features.asynchrony.plots import draw_asynchronous_plot  # which imports Matplotlib

    draw_asynchronous_plot(folder, title, lines)


ASYNCHRONY = Feature(
    name="asynchrony",
    section=Asynchrony,
    check=check,
    check_strategies=check_strategies,
    check_files=check_files,
    without_use=without_use,
    out_of_step=out_of_step,
    splits_edges=splits_edges,
    part=asynchronous_run,
    summary=asynchronous_summary,
    words=words,
    draw=_draw,
)
