"""Power-of-choice: of a few clients drawn by their data, those with the largest losses (2010.01243)."""

from dataclasses import dataclass

import numpy as np

from .full_work import able_by_cell, full_work
from .plan import Plan
from .problem import Problem


@dataclass(frozen=True)
class PowerOfChoice:
    """Power-of-choice, for each cell by itself: d candidates are drawn, the Z with the largest losses train.

    Candidates are drawn without replacement, in proportion to their examples. A client's loss is the mean training loss
    of its last round, infinite before (the paper's rpow-d); of equal ones chance decides.

    Parameters
    ----------
    candidates : int (default: 0)
        d. 0 is twice Z; one below Z is Z, which is random selection.

    Raises
    ------
    ValueError
        If it is negative, or no integer.
    """

    candidates: int = 0

    def __post_init__(self) -> None:
        if type(self.candidates) is not int or self.candidates < 0:
            raise ValueError(f"candidates = {self.candidates!r}: allowed is an integer of 0 or more")

    def __call__(self, problem: Problem) -> Plan:
        """Return the plan of a round."""
        work, known, wanted = full_work(problem), problem.known, problem.clients_per_cell
        loss = np.where(np.isnan(known.loss), np.inf, known.loss)
        selected, reason = np.zeros(problem.clients, dtype=bool), np.full(problem.clients, "not drawn", dtype="U24")
        for _, own, rng in able_by_cell(problem, work):
            number = min(max(self.candidates or 2 * wanted, wanted), len(own))
            share = known.examples[own] / known.examples[own].sum()
            drawn = rng.choice(own, number, replace=False, p=share) if number else own
            drawn = drawn[rng.permutation(number)]
            reason[drawn] = "its loss is small"
            selected[drawn[np.argsort(-loss[drawn], kind="stable")][:wanted]] = True
        return work.plan(problem, selected, reason)
