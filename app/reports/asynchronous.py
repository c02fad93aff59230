"""What is reported of a tier that waits for nobody, from the global lines of ``metrics.jsonl``."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

Line = dict[str, Any]


def asynchronous_summary(rounds: Sequence[Line]) -> Line:
    """Return what ``summary.json`` says of it; nothing for a run that waits for all.

    Returns
    -------
    dict
        ``simulated_seconds``, and ``async``: updates by ``staleness``, those that were ``too_old``, and the
        ``idle_share`` of edges and clients, a mean over the time of the rounds that have one.
    """
    own = [line for line in rounds if "async" in line]
    if not own:
        return {}
    idle, known = Counter[str](), Counter[str]()  # seconds by unit: idle, and of rounds of which that is known
    before = 0.0
    for line in own:
        seconds = line["simulated_seconds"] - before
        for unit, share in line["async"]["idle_share"].items():
            idle[unit] += share * seconds
            known[unit] += seconds
        before = line["simulated_seconds"]
    return {
        "simulated_seconds": before,
        "async": {
            "staleness": {str(staleness): count for staleness, count in sorted(staleness_counts(own).items())},
            "too_old": sum(line["async"]["too_old"] for line in own),
            "idle_share": {unit: idle[unit] / seconds for unit, seconds in known.items() if seconds},
        },
    }


def staleness_counts(rounds: Sequence[Line]) -> Counter[int]:
    """Return the number of updates by their staleness."""
    counts: Counter[int] = Counter()
    for line in rounds:
        counts.update({int(staleness): count for staleness, count in line["async"]["staleness"].items()})
    return counts
