"""A pool that nobody has divided, divided into training and test examples."""

import numpy as np


def train_and_test(labels: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which examples are trained on, and which are tested on.

    Parameters
    ----------
    labels : np.ndarray
        The class of each example, shape ``(N,)``.
    share : float
        Of each class to test on, above 0 and below 1: the nearest whole number, at least one and all but one at most.
        A class of one example is trained on.
    seed : int
        Decides which.

    Returns
    -------
    tuple[np.ndarray, np.ndarray]
        ``int64``, sorted.
    """
    rng = np.random.default_rng(seed)
    is_test = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        is_test[rows[: min(max(round(share * len(rows)), 1), len(rows) - 1)]] = True
    return np.flatnonzero(~is_test), np.flatnonzero(is_test)
