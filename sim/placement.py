"""Which worker does which piece of work, so that all are done early."""

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

Piece = TypeVar("Piece", bound=Hashable)
Worker = TypeVar("Worker", bound=Hashable)
# Who is that near the bound is left so: of many small pieces, the first try is.
CLOSE_ENOUGH = 1.01
# Pieces move where the busiest worker then has so much less to do: what they keep in memory is made again.
WORTH_MOVING = 0.95
LEAST_SECONDS = 1e-9  # of a piece, whatever a coarse clock says


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


class Places(Generic[Piece, Worker]):
    """At which worker each piece of work is done, evened out by the times that pieces took.

    Parameters
    ----------
    sizes : Mapping[Piece, float]
        How long each piece takes beside the others, before it is known.
    groups : Mapping[Piece, Hashable]
        Pieces of one group are at one worker.
    workers : Sequence[Worker]
        The workers.
    """

    def __init__(
        self, sizes: Mapping[Piece, float], groups: Mapping[Piece, Hashable], workers: Sequence[Worker]
    ) -> None:
        self._sizes, self._groups = dict(sizes), groups
        # By kind of work, since what evaluations take says nothing of training: what each piece took last, what pieces
        # took since then, and what all of them took so far.
        self._known: dict[str, dict[Piece, float]] = {}
        self._took: dict[str, dict[Piece, float]] = {}
        self._total: dict[str, float] = {}
        self.at: dict[Piece, Worker] = {}
        self.at = self._spread(list(sizes), workers)

    def add(self, kind: str, piece: Piece, seconds: float) -> None:
        """Take note of what a piece took."""
        took = self._took.setdefault(kind, {})
        took[piece] = took.get(piece, 0.0) + max(seconds, LEAST_SECONDS)
        self._total[kind] = self._total.get(kind, 0.0) + seconds

    def share_out_anew(self, kind: str, workers: Sequence[Worker]) -> None:
        """Share pieces out by what work of a kind took last, if that is worth it; who took none keeps its share.

        Only the kind that took most so far moves pieces: if they went to and fro, two workers would hold them.
        """
        if took := self._took.pop(kind, None):
            sizes = self._known.get(kind, self._sizes)
            seconds_per_size = sum(took.values()) / max(sum(sizes[piece] for piece in took), LEAST_SECONDS)
            self._known[kind] = {piece: size * seconds_per_size for piece, size in sizes.items()} | took
        if kind not in self._known or self._total[kind] < max(self._total.values()):
            return
        self._sizes = self._known[kind]
        at = self._spread(list(self.at), workers)
        if busiest(self._sizes, at) < WORTH_MOVING * busiest(self._sizes, self.at):
            self.at = at

    def leave(self, gone: Collection[Worker], workers: Sequence[Worker]) -> None:
        """Share out what is at workers that are gone among others, beside what they have."""
        self.at |= self._spread([piece for piece, worker in self.at.items() if worker in gone], workers)

    def _spread(self, pieces: Sequence[Piece], workers: Sequence[Worker]) -> dict[Piece, Worker]:
        sizes: dict[Hashable, float] = {}
        for piece in pieces:
            sizes[self._groups[piece]] = sizes.get(self._groups[piece], 0.0) + self._sizes[piece]
        loads = dict.fromkeys(workers, 0.0)
        for piece in self.at.keys() - set(pieces):
            if (worker := self.at[piece]) in loads:
                loads[worker] += self._sizes[piece]
        at = shared_out(sizes, list(loads.values()))
        return {piece: workers[at[self._groups[piece]]] for piece in pieces}


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
