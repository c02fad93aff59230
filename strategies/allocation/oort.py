"""Oort: clients whose losses are large and who are fast enough, and some that were never tried (2010.06081)."""

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from .full_work import FullWork, able_by_cell, full_work
from .plan import Plan
from .problem import Problem
from .standing import Standing

SCALE_OF_AGE = 0.1
FLAT, SHARP = 0.1, 5.0  # relative changes of the utility at which the pacer moves
LEAST_RANGE = 1e-4
LEAST_FACTOR = 1e-100  # of a slow client, which may be drawn however high the penalty
FROM_THE_BEST = 5  # so many times as many as are explored are drawn from
ROUNDING = 1e-9  # 5 (1 - 0.8) is 1


@dataclass
class Pace:
    """What `Oort` keeps of a cell.

    Parameters
    ----------
    exploration : float
        Share of the selected clients that are explored where anybody is new.
    percentile : float
        Of the clients' times, from 0 to 100: the preferred duration T.
    utilities : list[float]
        Mean statistical utility of those exploited in each round but the last, at most of the last ``2 window``.
    exploited : dict[int, float]
        Statistical utilities, before the last round, of those exploited in it, by client number.
    rounds : int
        Rounds in which somebody was able.
    """

    exploration: float
    percentile: float
    utilities: list[float] = field(default_factory=list)
    exploited: dict[int, float] = field(default_factory=dict)
    rounds: int = 0


@dataclass
class Oort:
    """Oort's training selector, for each cell by itself, with the numbers of the authors' code as defaults.

    In round R, with L_i the last one of client i, t_i its time, and the preferred duration T a percentile of all times:

    - utility: ``Stat_i = |B_i| |loss_i|``, of the clients tried;
      ``U_i = (min(Stat_i, clipped) - min) / (max - min) + sqrt(0.1 ln(R) / L_i)``, times ``(T / t_i)^penalty`` where
      ``t_i > T``. The loss is the mean of the client's training, where the paper has the root of the mean square of the
      samples' losses;
    - exploitation: ``floor(Z (1 - exploration))`` of those with U at least `cut` times the U of the first one left out,
      drawn in proportion to U;
    - exploration: the rest of Z, among clients never tried, in proportion to their examples, times the same factor, of
      the five times as many for whom that is largest. Where too few are left, chance fills up. Its share falls by the
      factor `decay` every round, down to `least`; in a round in which none of them is able, nobody is;
    - pacer: every `window` rounds, if the utility of those exploited, summed over so many rounds, changed by at most
      10 % from the sum before, T's percentile rises by `step`, and where it changed to sixfold or more it falls so.
      Rounds in which nobody is able do not count, and who is away in the next round counts with the utility before.

    Parameters
    ----------
    exploration, decay, least : float
        Share explored before the first round, its factor in each, and its end.
    window : int
        Rounds between two looks of the pacer.
    percentile, step : float
        Of T at first, and by how much the pacer moves it. From 100 on nobody is slow.
    penalty : float
        Exponent for slow clients.
    cut : float
        How close to the last utility taken another one must be.
    clip : float
        Quantile at which statistical utilities are clipped.

    Raises
    ------
    ValueError
        If one of them is not allowed.
    """

    exploration: float = 0.9
    decay: float = 0.95
    least: float = 0.2
    window: int = 20
    percentile: float = 10.0
    step: float = 5.0
    penalty: float = 2.0
    cut: float = 0.7
    clip: float = 0.98

    def __post_init__(self) -> None:
        most = {"percentile": 100.0, "step": 100.0, "penalty": 100.0, "window": 10**9}
        for name in (one.name for one in fields(self)):
            value, highest = getattr(self, name), most.get(name, 1.0)
            lowest = 1 if name == "window" else 0
            kind = (int,) if name == "window" else (int, float)
            if isinstance(value, bool) or not isinstance(value, kind) or not lowest <= value <= highest:
                of = "an integer" if name == "window" else "a number"
                raise ValueError(f"{name} = {value!r}: allowed is {of} from {lowest:g} to {highest:g}")
        self._cells: dict[int, Pace] = {}

    def __call__(self, problem: Problem) -> Plan:
        """Return the plan of a round."""
        work, known = full_work(problem), problem.known
        selected = np.zeros(problem.clients, dtype=bool)
        for cell, own, rng in able_by_cell(problem, work):
            if len(own):
                kept = self._cells.setdefault(cell, Pace(self.exploration, self.percentile))
                self._pace(kept, known)
                selected[self._selected(kept, known, work, own, min(problem.clients_per_cell, len(own)), rng)] = True
        return work.plan(problem, selected, np.full(problem.clients, "not drawn"))

    def _pace(self, kept: Pace, known: Standing) -> None:
        """Note the utility of those exploited in the round before, and move T where it has been flat."""
        now = dict(zip(known.clients.tolist(), statistical_utility(known).tolist(), strict=True))
        utility = [now.get(client, before) for client, before in kept.exploited.items()]
        kept.utilities = [*kept.utilities, float(np.mean(utility)) if utility else 0.0][-2 * self.window :]
        kept.rounds += 1
        if kept.rounds >= 2 * self.window and kept.rounds % self.window == 0:
            earlier, later = sum(kept.utilities[: -self.window]), sum(kept.utilities[-self.window :])
            if abs(later - earlier) <= FLAT * earlier:
                kept.percentile = min(100.0, kept.percentile + self.step)
            elif abs(later - earlier) >= SHARP * earlier:
                kept.percentile = max(self.step, kept.percentile - self.step)

    def _selected(
        self, kept: Pace, known: Standing, work: FullWork, own: np.ndarray, wanted: int, rng: np.random.Generator
    ) -> np.ndarray:
        """Return whom a cell selects of its able clients."""
        is_new = np.isnan(known.loss[own])
        tried, new, slowness = own[~is_new], own[is_new], self._slowness(kept, work.seconds[own])
        kept.exploration = max(kept.exploration * self.decay, self.least)
        share = kept.exploration if len(new) else 0.0
        number = min(int(wanted * (1 - share) + ROUNDING), len(tried))
        exploited = tried[:0]
        if number:
            score = self._utility(known, tried) * slowness[~is_new]
            first = np.argsort(-score, kind="stable")
            near = first[score[first] >= self.cut * score[first[min(number, len(first) - 1)]]]
            exploited = rng.choice(tried[near], number, replace=False, p=score[near] / score[near].sum())
        explored = new[:0]
        if more := min(wanted - number, len(new)):
            reward = known.examples[new] * slowness[is_new]
            best = np.argsort(-reward, kind="stable")[: FROM_THE_BEST * more]
            explored = rng.choice(new[best], more, replace=False, p=reward[best] / reward[best].sum())
        utility = statistical_utility(known)[exploited]
        kept.exploited = dict(zip(known.clients[exploited].tolist(), utility.tolist(), strict=True))
        chosen = np.concatenate([exploited, explored])
        others = np.setdiff1d(own, chosen)
        return np.concatenate([chosen, rng.choice(others, wanted - len(chosen), replace=False)])

    def _slowness(self, kept: Pace, seconds: np.ndarray) -> np.ndarray:
        """Return the factor of each client for its time, 1 for one that is fast enough."""
        if kept.percentile >= 100:
            return np.ones(len(seconds))
        place = min(int(len(seconds) * kept.percentile / 100), len(seconds) - 1)
        preferred = float(np.sort(seconds)[place])
        slow = np.maximum((preferred / seconds) ** self.penalty, LEAST_FACTOR)
        return np.where(seconds > preferred, slow, 1.0)

    def _utility(self, known: Standing, tried: np.ndarray) -> np.ndarray:
        """Return U of those tried, but for their times."""
        utility = statistical_utility(known)[tried]
        clipped = np.sort(utility)[min(int(len(tried) * self.clip), len(tried) - 1)]
        spread = max(float(utility.max() - utility.min()), LEAST_RANGE)
        last = np.maximum(known.edge_round - known.age[tried], 1)
        uncertain = np.sqrt(SCALE_OF_AGE * np.log(known.edge_round) / last)
        return (np.minimum(utility, clipped) - utility.min()) / spread + uncertain

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive an interruption."""
        return {"cells": {cell: dict(vars(kept)) for cell, kept in self._cells.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self._cells = {cell: Pace(**kept) for cell, kept in state["cells"].items()}


def statistical_utility(known: Standing) -> np.ndarray:
    """Return ``|B| |loss|`` of each client; NaN for those that have told no loss.

    A client tells one loss, the mean of its training; the paper's ``|B| sqrt(mean of loss^2)`` is over its samples.
    """
    return known.examples * np.abs(known.loss)
