"""Which clients of each cell: Z of them, of whom at most Psi were selected in the previous round."""

import numpy as np

from .problem import Problem


def choose(problem: Problem, eligible: np.ndarray, *keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Select in each cell the first Z eligible clients, passing over the previous round's once Psi of them are taken.

    The selections that both limits allow are the bases of a laminar matroid, so if the first key is what each client
    adds to the objective, no allowed selection has a smaller sum. A cell in which fewer than Z can be taken gets as
    many as can.

    Parameters
    ----------
    problem : Problem
        The round's problem.
    eligible : np.ndarray
        Booleans of shape ``(U,)``.
    *keys : np.ndarray
        What to sort by, each of shape ``(U,)``: a later key breaks the ties of the earlier ones, and after the last the
        index does.

    Returns
    -------
    tuple[np.ndarray, np.ndarray]
        Booleans of shape ``(U,)``: the selected, and those passed over who are among the first Z of their cell.
    """
    candidates = np.flatnonzero(eligible)
    order = candidates[np.lexsort([key[candidates] for key in (*reversed(keys), problem.cell)])]
    start = np.searchsorted(problem.cell[order], problem.cell[order])

    def count_in_cell(who: np.ndarray) -> np.ndarray:
        total = np.concatenate([[0], np.cumsum(who)])
        return total[1:] - total[start]

    allowed = np.ones(order.size, dtype=bool)
    if problem.previous is not None and problem.max_overlap is not None:
        again = problem.previous[order]
        allowed = ~again | (count_in_cell(again) <= problem.max_overlap)
    taken = allowed & (count_in_cell(allowed) <= problem.clients_per_cell)
    passed_over = ~allowed & (np.arange(order.size) - start < problem.clients_per_cell)
    selected, skipped = np.zeros(problem.clients, dtype=bool), np.zeros(problem.clients, dtype=bool)
    selected[order[taken]], skipped[order[passed_over]] = True, True
    return selected, skipped


def why_not(eligible: np.ndarray, limit: np.ndarray, skipped: np.ndarray) -> np.ndarray:
    """Return the reason why each client is not selected, given what `eligibility` and `choose` say about it."""
    return np.where(~eligible, limit, np.where(skipped, "overlap", "not among the best"))
