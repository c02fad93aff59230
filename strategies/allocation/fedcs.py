"""FedCS: as many clients as can compute and upload before the deadline, one upload after the other (1804.08333)."""

from dataclasses import dataclass

import numpy as np

from .full_work import able_by_cell, full_work
from .plan import Plan
from .problem import Problem

ROUNDING = 1e-9  # 100 * 0.07 is 7


@dataclass(frozen=True)
class FedCS:
    """FedCS's client selection (Algorithm 3), for each cell by itself.

    Clients compute side by side and upload in turn. The next one is always the candidate that makes the round the least
    longer, ``v_k + max(0, u_k - Theta)``, with u_k seconds to update and v_k to upload, and it is taken if the round
    then ends before the deadline; one that is not does not end the search. The paper's T_d, T_cs and T_agg are 0 here:
    what comes down is part of u_k. `Problem.clients_per_cell` and `max_overlap` are no limits.

    Parameters
    ----------
    asked : float (default: 1.0)
        Share of a cell's able clients, above 0 to 1, who are drawn as candidates: the paper's C.

    Raises
    ------
    ValueError
        If it is no such share.
    """

    asked: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.asked, bool) or not isinstance(self.asked, int | float) or not 0 < self.asked <= 1:
            raise ValueError(f"asked = {self.asked!r}: allowed is a number above 0, at most 1")

    def __call__(self, problem: Problem) -> Plan:
        """Return the plan of a round."""
        work, selected = full_work(problem), np.zeros(problem.clients, dtype=bool)
        reason = np.full(problem.clients, "not asked", dtype="U24")
        for _, own, rng in able_by_cell(problem, work):
            number = int(np.ceil(len(own) * self.asked * (1 - ROUNDING)))
            candidates = np.sort(rng.choice(own, number, replace=False))
            reason[candidates] = "no time for its upload"
            update, upload = work.update_seconds[candidates], work.upload_seconds[candidates]
            selected[candidates[in_time(update, upload, problem.deadline_seconds)]] = True
        return work.plan(problem, selected, reason)


def in_time(update_seconds: np.ndarray, upload_seconds: np.ndarray, deadline_seconds: float) -> list[int]:
    """Return whom FedCS takes of the candidates of a cell, in the order of their uploads; of two alike the first.

    Parameters
    ----------
    update_seconds, upload_seconds : np.ndarray
        Shape (n,), of each candidate.
    deadline_seconds : float
        The last upload ends before it.
    """
    taken, theta, left = [], 0.0, np.ones(len(update_seconds), dtype=bool)
    while left.any():
        longer = upload_seconds + np.maximum(0.0, update_seconds - theta)
        k = int(np.where(left, longer, np.inf).argmin())
        left[k] = False
        if theta + longer[k] < deadline_seconds:
            theta += float(longer[k])
            taken.append(k)
    return taken
