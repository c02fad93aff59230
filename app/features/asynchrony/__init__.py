"""Tiers that do not wait for their slowest."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from espalier.app.features.asynchrony import checks, reports, tiers
from espalier.app.features.asynchrony.settings import Asynchrony
from espalier.app.features.feature import Feature, Line


def _draw(folder: Path, title: str, lines: Sequence[Line], world: Mapping[str, Any] | None) -> None:
    from espalier.app.features.asynchrony.plots import draw_asynchronous_plot  # which imports Matplotlib

    draw_asynchronous_plot(folder, title, lines)


ASYNCHRONY = Feature(
    name="asynchrony",
    section=Asynchrony,
    check=checks.check,
    check_strategies=checks.check_strategies,
    check_files=checks.check_files,
    without_use=checks.without_use,
    out_of_step=checks.out_of_step,
    splits_edges=checks.splits_edges,
    part=tiers.asynchronous_run,
    summary=reports.asynchronous_summary,
    words=reports.words,
    draw=_draw,
)
