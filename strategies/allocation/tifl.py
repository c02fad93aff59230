"""TiFL: clients in tiers of like speed, and each round one tier, the less accurate ones more often (2001.09249)."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .full_work import FullWork, able_by_cell, full_work
from .plan import Plan
from .problem import Problem


@dataclass
class Tiers:
    """What `TiFL` keeps of a cell.

    Parameters
    ----------
    seconds : dict[int, float]
        Profiled delay by client number: what the client took when it first was able.
    chances : list[float]
        Of each tier, to be drawn.
    credits : list[int]
        Of each tier: how often it may still be drawn.
    rounds : int
        How many there were with these tiers.
    last : int
        The tier drawn last.
    accuracies : list[list[float]]
        Of each tier before each of the last `TiFL.interval` rounds; NaN where no client of it told any.
    """

    seconds: dict[int, float] = field(default_factory=dict)
    chances: list[float] = field(default_factory=list)
    credits: list[int] = field(default_factory=list)
    rounds: int = 0
    last: int = 0
    accuracies: list[list[float]] = field(default_factory=list)


class TiFL:
    """TiFL's adaptive selection (Algorithm 2), for each cell by itself.

    Clients that can take part are sorted by their profiled delay and shared out to tiers of equal size. Each round
    draws a tier that has credits, and Z of its clients with equal chance. Every `interval` rounds, if the accuracy of
    the tier drawn last has not risen since `interval` rounds before, the n tiers with credits are ranked from the least
    accurate, i = 0, to the most: ``P_i = (n - i) / (n (n + 1) / 2)``. A tier's accuracy is the mean of its clients'.

    Parameters
    ----------
    tiers : int (default: 5)
        T; fewer where a tier would have less than Z clients.
    interval : int (default: 20)
        Rounds between two looks at the accuracies, the paper's I.
    credits : int (default: 0)
        How often each tier may be drawn; where all are spent, each gets as many again. 0 is no limit.

    Raises
    ------
    ValueError
        If one of them is no such integer.
    """

    def __init__(self, tiers: int = 5, interval: int = 20, credits: int = 0) -> None:
        for name, value, least in (("tiers", tiers, 1), ("interval", interval, 1), ("credits", credits, 0)):
            if type(value) is not int or value < least:
                raise ValueError(f"{name} = {value!r}: allowed is an integer of {least} or more")
        self.tiers, self.interval, self.credits = tiers, interval, credits
        self._cells: dict[int, Tiers] = {}

    def __call__(self, problem: Problem) -> Plan:
        """Return the plan of a round."""
        work, selected = full_work(problem), np.zeros(problem.clients, dtype=bool)
        reason = np.full(problem.clients, "in another tier", dtype="U24")
        for cell, own, rng in able_by_cell(problem, work):
            if len(own):
                tier = self._tier(self._cells.setdefault(cell, Tiers()), problem, work, own, rng)
                reason[tier] = "not drawn"
                selected[rng.choice(tier, min(problem.clients_per_cell, len(tier)), replace=False)] = True
        return work.plan(problem, selected, reason)

    def _tier(
        self, kept: Tiers, problem: Problem, work: FullWork, own: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Return the clients of the tier that is drawn for this round."""
        known = problem.known
        for client, seconds in zip(known.clients[own].tolist(), work.seconds[own].tolist(), strict=True):
            kept.seconds.setdefault(client, seconds)
        delay = np.array([kept.seconds[client] for client in known.clients[own].tolist()])
        number = max(1, min(self.tiers, len(own) // problem.clients_per_cell))
        tiers = np.array_split(own[np.argsort(delay, kind="stable")], number)
        if len(kept.chances) != number:  # the first round, or so many have come or gone that tiers are other ones
            kept.chances, kept.credits = [1 / number] * number, [self.credits] * number
            kept.rounds, kept.accuracies = 0, []
        if not any(kept.credits):
            kept.credits = [self.credits] * number
        left = np.array(kept.credits) > 0 if self.credits else np.ones(number, dtype=bool)
        accuracy = np.array([mean_known(known.accuracy[tier]) for tier in tiers])
        is_time = kept.rounds and kept.rounds % self.interval == 0 and not np.isnan(accuracy).any()
        if is_time and accuracy[kept.last] <= kept.accuracies[0][kept.last]:
            kept.chances = changed_chances(accuracy, left).tolist()
        chance = np.where(left, kept.chances, 0.0)
        chance = chance / chance.sum() if chance.any() else left / left.sum()
        kept.last = int(rng.choice(number, p=chance))
        kept.credits[kept.last] -= bool(self.credits)
        kept.rounds += 1
        kept.accuracies = [*kept.accuracies, accuracy.tolist()][-self.interval :]
        return tiers[kept.last]

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive an interruption."""
        return {"cells": {cell: dict(vars(kept)) for cell, kept in self._cells.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self._cells = {cell: Tiers(**kept) for cell, kept in state["cells"].items()}


def mean_known(accuracy: np.ndarray) -> float:
    """Return the mean of what is known; NaN where nothing is."""
    known = accuracy[~np.isnan(accuracy)]
    return float(known.mean()) if known.size else float("nan")


def changed_chances(accuracy: np.ndarray, left: np.ndarray) -> np.ndarray:
    """Return the chance of each tier to be drawn: the less accurate the higher, 0 without credits; shapes (T,)."""
    chances, tiers = np.zeros(len(accuracy)), np.flatnonzero(left)
    number = len(tiers)
    ranked = tiers[np.argsort(accuracy[tiers], kind="stable")]
    chances[ranked] = 2 * (number - np.arange(number)) / (number * (number + 1))
    return chances
