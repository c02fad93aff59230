"""What must be true at the end of a soak, and its figures."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch

from tests.app.runs import lines, weights

from .resources import AMOUNTS, Holding

# At rest, of a program's mean process, to what it held at rest after five minutes. A process that was just started has
# loaded less of what it needs once: an edge's run is 22 MB and three threads larger after its first round, a SuperLink
# up to 26 MB, and it holds a connection or two for each program that has asked it lately.
MOST_MORE_AT_REST = {"threads": 6.0, "files": 16.0, "megabytes": 32.0}
# A client's process, which is there while it works; at rest there is none, or one on each device that stays.
WORKING = "flwr-clientapp"
# Of one process that lived for ten minutes and more: the least in its last five minutes, to the most in its first five.
# A SuperLink takes up to 70 MB for a while, most of which it gives back.
MOST_GROWTH = {"threads": 6.0, "files": 12.0, "megabytes": 48.0}
WINDOW_SECONDS = 300.0

Totals = Mapping[str, Mapping[str, float]]


def more_at_rest(before: Totals, after: Totals, most_working: int = 0) -> list[str]:
    """Return what is left over of two times at rest, a line each; so many devices may stay, and need not."""
    faults = []
    for program in sorted(before.keys() | after.keys()):
        counts = [int(totals.get(program, {}).get("processes", 0)) for totals in (before, after)]
        may_differ = program == WORKING and max(counts) <= most_working
        if counts[0] != counts[1] and not may_differ:
            faults.append(f"{program}: {counts[1]} processes, {counts[0]} before")
        if 0 in counts or (counts[0] != counts[1] and not may_differ):
            continue
        for amount in AMOUNTS:
            more = after[program][amount] / counts[1] - before[program][amount] / counts[0]
            if more > MOST_MORE_AT_REST[amount]:
                faults.append(f"{program}: {more:.1f} {amount} more in the mean of {counts[1]} processes")
    return faults


def growth(samples: Iterable[Holding]) -> dict[str, dict[str, float]]:
    """Return, for each program, how much the process that grew most has grown since its own first five minutes.

    Of processes that lived for twice as long and more; ``lived`` is how many there were.
    """
    by_process: dict[tuple[str, int], list[Holding]] = defaultdict(list)
    for sample in samples:
        by_process[sample.program, sample.pid].append(sample)
    found: dict[str, dict[str, float]] = {}
    for (program, _), own in by_process.items():
        last = own[-1].age_seconds
        if last - own[0].age_seconds < 2 * WINDOW_SECONDS:
            continue
        early = [one for one in own if one.age_seconds <= own[0].age_seconds + WINDOW_SECONDS]
        late = [one for one in own if one.age_seconds >= last - WINDOW_SECONDS]
        most = found.setdefault(program, {"lived": 0, **dict.fromkeys(AMOUNTS, float("-inf"))})
        most["lived"] += 1
        for amount in AMOUNTS:
            grown = min(getattr(one, amount) for one in late) - max(getattr(one, amount) for one in early)
            most[amount] = round(max(most[amount], grown), 1)
    return dict(sorted(found.items()))


def grown_too_much(grown: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return the programs of which a process grew by more than it may, a line each amount."""
    return [
        f"{program}: a process grew by {most[amount]:g} {amount}"
        for program, most in grown.items()
        for amount in AMOUNTS
        if most[amount] > MOST_GROWTH[amount]
    ]


def difference(left: Path, right: Path) -> float:
    """Return the largest difference between the weights of two results folders; NaN if there is one among them."""
    a, b = weights(left), weights(right)
    assert a.keys() == b.keys()
    return float(torch.stack([(a[name].double() - b[name].double()).abs().max() for name in a]).max())


def faults_of_lines(results: Path) -> list[str]:
    """Return what is wrong with the lines of a run that was resumed: every round must be there once for each edge."""
    edges, globals_ = lines(results, "edge"), lines(results, "global")
    last = max(line["round"] for line in globals_)
    faults = []
    if [line["round"] for line in globals_] != list(range(1, last + 1)):
        faults.append("not every global round is in metrics.jsonl once")
    counts = Counter((line["round"], line["edge"]) for line in edges)
    names = {line["edge"] for line in edges}
    if any(counts[number, name] != 1 for number in range(1, last + 1) for name in names):
        faults.append("not every edge's round is in metrics.jsonl once")
    return faults


def rounds_of(results: Path) -> dict[str, int]:
    """Return how many rounds there were, and in how many somebody was left out."""
    by_round: dict[int, list[dict]] = defaultdict(list)
    for line in lines(results, "edge"):
        by_round[line["round"]].append(line)
    left_out = lines(results, "global")
    return {
        "done": len(by_round),
        "with everybody": sum(not any(line["failures"] for line in own) for own in by_round.values()),
        "with clients left out": sum(
            any(f["client"] is not None for line in own for f in line["failures"]) for own in by_round.values()
        ),
        "with an edge left out": sum(bool(line["edges_left_out"]) for line in left_out),
        "with nobody": sum(not any(line["trained"] for line in own) for own in by_round.values()),
    }


def table(rows: Sequence[Sequence[object]]) -> str:
    """Return rows in columns, the first row as a head."""
    texts = [[f"{cell:g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in texts) for i in range(len(texts[0]))]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in texts
    )
