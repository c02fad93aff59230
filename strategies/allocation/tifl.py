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
        Profiled delay by client number, of all who ever were able: what the client took when it first was.
    told : dict[int, float]
        Accuracy by client number: the last one that is known.
    wanted : int
        The largest Z so far: of fewer clients that are there, fewer are selected.
    chances : list[float]
        Of each tier, to be drawn.
    credits : list[int]
        Of each tier: how often it may still be drawn.
    rounds : int
        In how many of them one of these tiers was drawn.
    last : int
        The tier drawn last.
    accuracies : list[list[float]]
        Of each tier before each of the last `TiFL.interval` rounds; NaN where no client of it told any.
    """

    seconds: dict[int, float] = field(default_factory=dict)
    told: dict[int, float] = field(default_factory=dict)
    wanted: int = 0
    chances: list[float] = field(default_factory=list)
    credits: list[int] = field(default_factory=list)
    rounds: int = 0
    last: int = 0
    accuracies: list[list[float]] = field(default_factory=list)


class TiFL:
    """TiFL's adaptive selection (Algorithm 2), for each cell by itself.

    All clients that were able once, there or not, are sorted by their profiled delay and shared out to tiers of equal
    size. Each round draws a tier that has credits and somebody who is able now, and Z of its able clients with equal
    chance; where it has less than Z, those of the nearest tiers join.
    Every `interval` rounds, if the accuracy of the tier drawn last has not risen since `interval` rounds before, the n
    tiers with credits are ranked from the least accurate, i = 0, to the most: ``P_i = (n - i) / (n (n + 1) / 2)``. A
    tier's accuracy is the mean of its clients' last ones.

    Chances, credits and accuracies begin anew where the number of tiers changes, as clients were able for the first
    time.

    Parameters
    ----------
    tiers : int (default: 5)
        T; fewer where a tier would have less than Z clients.
    interval : int (default: 20)
        Rounds between two looks at the accuracies, the paper's I.
    credits : int (default: 0)
        How often each tier may be drawn; where all that could be drawn have spent theirs, every tier gets as many more.
        0 is no limit.

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
        self._forget_moved(problem)
        for cell, own, rng in able_by_cell(problem, work):
            if len(own):
                kept = self._cells.setdefault(cell, Tiers())
                learn(kept, problem, work, np.flatnonzero(problem.cell == cell), own)
                tier = self._tier(kept, problem, own, rng)
                reason[tier] = "not drawn"
                selected[rng.choice(tier, min(problem.clients_per_cell, len(tier)), replace=False)] = True
        return work.plan(problem, selected, reason)

    def _forget_moved(self, problem: Problem) -> None:
        """Take clients out of the tiers of cells in which they are no longer."""
        cell_of = dict(zip(problem.known.clients.tolist(), problem.cell.tolist(), strict=True))
        for cell, kept in self._cells.items():
            for client in [client for client in kept.seconds if cell_of.get(client, cell) != cell]:
                del kept.seconds[client]
                kept.told.pop(client, None)

    def _tier(self, kept: Tiers, problem: Problem, own: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return the able clients of the tier that is drawn for this round, with its neighbours' where they are few."""
        place = dict(zip(problem.known.clients[own].tolist(), own.tolist(), strict=True))
        number = max(1, min(self.tiers, len(kept.seconds) // kept.wanted))
        by_delay = sorted(kept.seconds, key=lambda client: (kept.seconds[client], client))
        tiers = [tier.tolist() for tier in np.array_split(by_delay, number)]
        if len(kept.chances) != number:  # the first round, or so many are new that tiers are other ones
            kept.chances, kept.credits = [1 / number] * number, [self.credits] * number
            kept.rounds, kept.accuracies = 0, []
        able = [np.array([place[client] for client in tier if client in place], dtype=int) for tier in tiers]
        there = np.array([len(one) > 0 for one in able])
        if self.credits and not np.array(kept.credits)[there].any():
            kept.credits = [credit + self.credits for credit in kept.credits]
        left = np.array(kept.credits) > 0 if self.credits else np.ones(number, dtype=bool)
        accuracy = np.array(
            [mean_known(np.array([kept.told.get(client, np.nan) for client in tier])) for tier in tiers]
        )
        is_time = kept.rounds and kept.rounds % self.interval == 0 and not np.isnan(accuracy).any()
        if is_time and accuracy[kept.last] <= kept.accuracies[0][kept.last]:
            kept.chances = changed_chances(accuracy, left).tolist()
        possible = left & there
        chance = np.where(possible, kept.chances, 0.0)
        chance = chance / chance.sum() if chance.any() else possible / possible.sum()
        kept.last = int(rng.choice(number, p=chance))
        kept.credits[kept.last] -= bool(self.credits)
        kept.rounds += 1
        kept.accuracies = [*kept.accuracies, accuracy.tolist()][-self.interval :]
        return with_neighbours(able, kept.last, problem.clients_per_cell)

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive an interruption."""
        return {"cells": {cell: dict(vars(kept)) for cell, kept in self._cells.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self._cells = {cell: Tiers(**kept) for cell, kept in state["cells"].items()}


def with_neighbours(tiers: list[np.ndarray], drawn: int, least: int) -> np.ndarray:
    """Return the clients of a tier, joined by those of the nearest ones until there are enough, the faster first."""
    found = tiers[drawn]
    for tier in sorted(set(range(len(tiers))) - {drawn}, key=lambda tier: (abs(tier - drawn), tier)):
        if len(found) >= least:
            break
        found = np.concatenate([found, tiers[tier]])
    return found


def learn(kept: Tiers, problem: Problem, work: FullWork, there: np.ndarray, own: np.ndarray) -> None:
    """Note what is known of a cell's clients that are there, and how long those who are able take."""
    known = problem.known
    for client, seconds in zip(known.clients[own].tolist(), work.seconds[own].tolist(), strict=True):
        kept.seconds.setdefault(client, seconds)
    told = there[~np.isnan(known.accuracy[there])]
    kept.told |= dict(zip(known.clients[told].tolist(), known.accuracy[told].tolist(), strict=True))
    kept.wanted = max(kept.wanted, problem.clients_per_cell)


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
