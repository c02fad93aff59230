"""What a run with secure aggregation says of it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from espalier.app.features.feature import Line, Part, RoundOver, Scene
from espalier.app.features.secure_aggregation.checks import is_on
from espalier.strategies import Update
from espalier.strategies.secure import CLIPPED, ERROR, SUMMED


class SecureReport(Part):
    """Tells of each edge round what its average is like."""

    def of_edge(self, name: str, over: RoundOver) -> Line:
        """Return ``secure``: of each edge round its ``clients``, the ``error`` and how many numbers were ``clipped``.

        None for a void one.
        """
        return {"secure": [_told(update) for update in over.outcome.edges[name].updates]}


def part_of(scene: Scene) -> SecureReport | None:
    """Return what tells of averages; None where updates come as they are."""
    return SecureReport() if is_on(scene.case) else None


def summary(lines: Sequence[Line]) -> Line:
    """Return ``secure``: edge rounds, how many were void, the largest error, and how many numbers were clipped."""
    told = [own for line in lines if line["scope"] == "edge" for own in line.get("secure", ())]
    if not told:
        return {}
    made = [own for own in told if own]
    return {
        "secure": {
            "edge_rounds": len(told),
            "void": len(told) - len(made),
            "largest_error": max((own["error"] for own in made), default=0.0),
            "clipped": sum(own["clipped"] for own in made),
        }
    }


def words(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the table at the end of a run says of it."""
    if own := summary.get("secure"):
        void = f", {own['void']} of them void" if own["void"] else ""
        clipped = f", {own['clipped']} numbers clipped" if own["clipped"] else ""
        error = f"off by {own['largest_error']:.2g} at most"
        yield f"secure aggregation: {own['edge_rounds']} edge rounds{void}, {error}{clipped}"


def _told(update: Update) -> Line | None:
    metrics: Mapping[str, Any] = update.metrics or {}
    if update.arrays is None or SUMMED not in metrics:
        return None
    return {"clients": metrics[SUMMED], "error": metrics[ERROR], "clipped": metrics[CLIPPED]}
