"""What is reported of a tier that waits for nobody, from the global lines of ``metrics.jsonl``."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from espalier.app.features.feature import Line


def asynchronous_summary(lines: Sequence[Line]) -> Line:
    """Return what ``summary.json`` says of it, by the lines of ``metrics.jsonl``; nothing for a run that waits for all.

    Returns
    -------
    dict
        ``simulated_seconds``, where time is simulated, and ``async``: updates by ``staleness``, those that were
        ``too_old``, and the ``idle_share`` of edges and clients, a mean over the time of the rounds that have one.
    """
    own = [line for line in lines if "async" in line]
    if not own:
        return {}
    # Seconds by unit: idle, and of rounds of which that is known.
    idle, known = defaultdict[str, float](float), defaultdict[str, float](float)
    before = 0.0
    for line in own:
        seconds = seconds_of(line) - before
        for unit, share in line["async"]["idle_share"].items():
            idle[unit] += share * seconds
            known[unit] += seconds
        before = seconds_of(line)
    return {
        **({"simulated_seconds": before} if "simulated_seconds" in own[-1] else {}),
        "async": {
            "staleness": {str(staleness): count for staleness, count in sorted(staleness_counts(own).items())},
            "too_old": sum(line["async"]["too_old"] for line in own),
            "idle_share": {unit: idle[unit] / seconds for unit, seconds in known.items() if seconds},
        },
    }


def seconds_of(line: Line) -> float:
    """Return the time of a global line by the run's clock: the simulated one, or the one on the wall."""
    return float(line["simulated_seconds" if "simulated_seconds" in line else "wall_seconds"])


def staleness_counts(rounds: Sequence[Line]) -> Counter[int]:
    """Return the number of updates by their staleness."""
    counts: Counter[int] = Counter()
    for line in rounds:
        counts.update({int(staleness): count for staleness, count in line["async"]["staleness"].items()})
    return counts


def words(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the table at the end of a run says of it."""
    if own := summary.get("async"):
        idle = "".join(f", {unit} idle {share:.0%} of it" for unit, share in own["idle_share"].items())
        time = (
            f"simulated time: {summary['simulated_seconds']:.1f} s"
            if "simulated_seconds" in summary
            else f"time: {summary['wall_seconds']:.1f} s"
        )
        yield f"{time}{idle}; {own['too_old']} updates too old"
