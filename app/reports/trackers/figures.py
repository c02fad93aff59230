"""What the lines of ``metrics.jsonl`` hold, as numbers with names and as texts."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from espalier.app.ground.figures import is_number
from espalier.app.reports.metrics import failures_of

Figures = dict[str, float]
# Of the plans of a round, over its edge rounds: lists of clients are counted, costs are added up.
COUNTED = ("eligible", "selected", "late")
ADDED = ("seconds", "compute_joules", "upload_joules")
NAMES_NO_FIGURE = ("round", "scope", "edge", "clients", "plans", "plans_at_work")


def figures_of(line: Mapping[str, Any]) -> Figures:
    """Return the numbers of a line by names like ``accuracy/mean``; lists count, and plans are summed up.

    What single clients have is left out: there may be a million of them.
    """
    figures = dict(_numbers("", {name: value for name, value in line.items() if name not in NAMES_NO_FIGURE}))
    return figures | plan_figures(line.get("plans", ()))


def edge_figures(lines: Sequence[Mapping[str, Any]]) -> Figures:
    """Return the numbers of the lines of a round's edges, by names like ``edges/west/loss``."""
    return {f"edges/{line['edge']}/{name}": value for line in lines for name, value in figures_of(line).items()}


def plan_figures(plans: Sequence[Mapping[str, Any]]) -> Figures:
    """Return what the plans of a round come to, over its edge rounds, by names like ``plans/selected``."""
    figures = {f"plans/{name}": float(sum(len(plan[name]) for plan in plans if name in plan)) for name in COUNTED}
    figures |= {f"plans/{name}": math.fsum(_sum(plan.get(name, 0.0)) for plan in plans) for name in ADDED}
    return figures if plans else {}


def failures_in(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a text for each failure that lines name."""
    texts = []
    for line in lines:
        for one in failures_of(line):
            when = f"edge round {one['edge_round']}" if "edge_round" in one else "evaluation"
            who = "nobody" if one["client"] is None else f"client {one['client']}"
            texts.append(f"{line.get('edge') or one.get('edge')}, {when}: {who}: {one['reason']}")
        texts += [f"cloud: {reason}" for reason in line.get("cloud_failures", ())]
    return texts


class OfEdges:
    """What the edges' lines of a round hold, until the round's own line comes."""

    def __init__(self) -> None:
        self._figures: Figures = {}
        self._failures: list[str] = []

    def edges_over(self, number: int, lines: Sequence[Mapping[str, Any]]) -> None:
        """Keep the figures of a round's edges, and who failed there, for the round's."""
        self._figures, self._failures = edge_figures(lines), failures_in(lines)

    def whole_round(self, line: Mapping[str, Any]) -> tuple[Figures, list[str]]:
        """Return figures and failures of a round, those of its edges among them, which are no other round's."""
        figures, failures = {**self._figures, **figures_of(line)}, [*self._failures, *failures_in([line])]
        self._figures, self._failures = {}, []
        return figures, failures


def _numbers(path: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _numbers(f"{path}/{name}" if path else str(name), inner)
    elif isinstance(value, list):
        yield path, float(_size(value))
    elif is_number(value):
        yield path, float(value)


def _size(values: Sequence[Any]) -> int:
    """Return how many there are in a list, in those that it is made of where it is made of lists."""
    return sum(_size(one) if isinstance(one, list) else 1 for one in values)


def _sum(value: float | Sequence[float]) -> float:
    return math.fsum(value) if isinstance(value, list) else float(value)  # type: ignore[arg-type]
