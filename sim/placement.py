"""Which worker does which piece of work, so that all are done early."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TypeVar

Piece = TypeVar("Piece", bound=Hashable)
# Who is that near the bound is left so: of many small pieces, the first try is.
CLOSE_ENOUGH = 1.01


def shared_out(work: Mapping[Piece, float], loads: Sequence[float]) -> dict[Piece, int]:
    """Share out pieces of work, so that the busiest worker has little to do.

    The largest piece goes first, to the worker that has least (longest processing time first, Graham 1969). Then, while
    it helps, the busiest worker gives a piece away, or exchanges two.

    Parameters
    ----------
    work : Mapping[Piece, float]
        How long each piece takes, in any unit.
    loads : Sequence[float]
        What each worker has to do already, in this unit.

    Returns
    -------
    dict[Piece, int]
        The worker of each piece, as its place in `loads`; the first one of equals.
    """
    at: dict[Piece, int] = {}
    totals = list(loads)
    bound = max((sum(totals) + sum(work.values())) / len(totals), *totals, *work.values())
    for piece in sorted(work, key=lambda piece: -work[piece]):
        at[piece] = worker = totals.index(min(totals))
        totals[worker] += work[piece]
    while max(totals) > CLOSE_ENOUGH * bound and _even_out(work, at, totals):
        pass
    return at


def busiest(work: Mapping[Piece, float], at: Mapping[Piece, Hashable]) -> float:
    """Return how much the busiest worker has to do, of pieces that are shared out."""
    totals: dict[Hashable, float] = {}
    for piece, worker in at.items():
        totals[worker] = totals.get(worker, 0.0) + work[piece]
    return max(totals.values(), default=0.0)


def _even_out(work: Mapping[Piece, float], at: dict[Piece, int], totals: list[float]) -> bool:
    """Take the step that leaves the busiest worker, and who gets its piece, with least; False if none helps."""
    giver = totals.index(max(totals))

    def busier_after(step: tuple[Piece, Piece | None, int]) -> float:
        given = _given(work, step)
        return max(totals[giver] - given, totals[step[2]] + given)

    best = min(_steps(at, giver, len(totals)), key=busier_after, default=None)
    if best is None or busier_after(best) >= totals[giver] * (1 - 1e-9):  # not for what rounding makes of equals
        return False
    piece, other, taker = best
    at[piece] = taker
    if other is not None:
        at[other] = giver
    totals[giver] -= _given(work, best)
    totals[taker] += _given(work, best)
    return True


def _steps(at: Mapping[Piece, int], giver: int, num_workers: int) -> Iterator[tuple[Piece, Piece | None, int]]:
    """Yield what a worker may do: give a piece, for another one or for none, to a worker."""
    for piece in (piece for piece, worker in at.items() if worker == giver):
        yield from ((piece, None, taker) for taker in range(num_workers) if taker != giver)
        yield from ((piece, other, taker) for other, taker in at.items() if taker != giver)


def _given(work: Mapping[Piece, float], step: tuple[Piece, Piece | None, int]) -> float:
    """Return by how much a step relieves who gives."""
    piece, other, _ = step
    return work[piece] - (0.0 if other is None else work[other])
