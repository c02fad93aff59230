"""The split of FedMA (arXiv:2002.06440), which Flower's niid_bench and NVFlare's CIFAR-10 example use."""

import numpy as np

LEAST_EXAMPLES, TRIES = 10, 1000  # of a client; for all of them


def balanced_dirichlet(
    rng: np.random.Generator | np.random.RandomState, labels: np.ndarray, num_clients: int, alpha: float
) -> list[np.ndarray]:
    """Divide each class by shares from Dir(alpha), only among clients that have less than an equal part of all so far.

    That is done again until all clients have 10 images.

    Parameters
    ----------
    rng : np.random.Generator | np.random.RandomState
        What draws.
    labels : np.ndarray
        The classes of the images, shape ``(N,)``.
    num_clients : int
        The number of clients.
    alpha : float
        The concentration.

    Returns
    -------
    list[np.ndarray]
        The places of each client's images.

    Raises
    ------
    ValueError
        If clients have too few images in each of 1,000 tries.
    """
    for _ in range(TRIES):
        parts = [np.empty(0, int)] * num_clients
        for label in np.unique(labels):
            shuffled = rng.permutation(np.flatnonzero(labels == label))
            wanting = np.array([len(part) < len(labels) / num_clients for part in parts])
            shares = rng.dirichlet(np.full(num_clients, alpha)) * wanting
            if not (total := shares.sum()):
                break
            ends = (np.cumsum(shares / total) * len(shuffled)).astype(int)
            parts = [np.append(*pair) for pair in zip(parts, np.split(shuffled, ends[:-1]), strict=True)]
        if min(map(len, parts)) >= LEAST_EXAMPLES:
            return parts
    raise ValueError(
        f"{len(labels)} images: allowed are so many that each of {num_clients} clients gets {LEAST_EXAMPLES} in one of "
        f"{TRIES} tries with alpha = {alpha:g}"
    )
