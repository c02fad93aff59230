"""Workers of Ray that outlive a run of the app: to start one takes seconds, most of them for importing PyTorch."""

from collections.abc import Sequence
from typing import Any

from espalier.sim.ray_grid import WorkerPlace, Workers, all_of
from espalier.sim.simulated_grid import GridLost

_left: list[tuple[Any, dict[str, Any]]] = []  # actors of runs that are over, and what they say of themselves


class KeptWorkers(Workers):
    """Workers of earlier runs, as far as there are any and they are alive; others are started.

    Parameters
    ----------
    places : Sequence[WorkerPlace]
        One for each worker. All are taken to be alike.
    """

    def __init__(self, places: Sequence[WorkerPlace]) -> None:
        kept = []
        while _left and len(kept) < len(places):
            if _is_alive(one := _left.pop()):
                kept.append(one)
        self.actors, self.abouts = [actor for actor, _ in kept], [about for _, about in kept]
        if missing := places[len(kept) :]:
            started = Workers(missing)
            self.actors += started.actors
            self.abouts += started.abouts

    def close(self) -> None:
        """Leave the workers to the next run."""
        _left.extend(zip(self.actors, self.abouts, strict=True))


def _is_alive(one: tuple[Any, dict[str, Any]]) -> bool:
    actor, about = one
    try:
        return all_of([actor.about.remote()], seconds=60) == [about]
    except GridLost:
        return False
