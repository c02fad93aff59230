"""How the curves of settings look: colour says the algorithm, line and marker say the other settings."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from espalier.app.comparison.groups import CASE, Group

# Okabe and Ito's colours, which all can tell apart, without the yellow, which is too bright for lines.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES, MARKERS = ("-", "--", ":", "-."), ("o", "s", "^", "D", "v", "P", "X")


@dataclass(frozen=True)
class Look:
    """How a curve looks.

    Parameters
    ----------
    color, marker, style : str
        For matplotlib; the last is of the line.
    """

    color: str
    marker: str
    style: str


def looks_of(groups: Sequence[Group]) -> list[Look]:
    """Return how the curves of settings look.

    Settings of one algorithm, or case of a sweep, have one colour, and those that are otherwise the same have one line
    and marker. Where algorithms alone differ, or other settings alone, each has a colour, line and marker of its own.
    """
    algorithms, others = _numbers(groups, _algorithm), _numbers(groups, _other)
    if not any(algorithms):
        algorithms = others
    if not any(others):
        others = algorithms
    return [look(*numbers) for numbers in zip(algorithms, others, strict=True)]


def look(first: int, second: int) -> Look:
    """Return the look of a number for the colour and one for line and marker; a colour again has another marker."""
    return Look(
        COLORS[first % len(COLORS)],
        MARKERS[(second + first // len(COLORS)) % len(MARKERS)],
        STYLES[second % len(STYLES)],
    )


def _numbers(groups: Sequence[Group], of: Callable[[Group], str]) -> list[int]:
    first = list(dict.fromkeys(map(of, groups)))
    return [first.index(of(group)) for group in groups]


def _algorithm(group: Group) -> str:
    """Return what colour stands for: a case is what its sweep compares."""
    return repr({key: value for key, value in group.chosen.items() if key == _colour_key(group)})


def _other(group: Group) -> str:
    return repr({key: value for key, value in group.chosen.items() if key != _colour_key(group)})


def _colour_key(group: Group) -> str:
    return CASE if CASE in group.chosen else "algorithm"
