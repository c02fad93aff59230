"""The split of FedMA (arXiv:2002.06440), which Flower's niid_bench and NVFlare's CIFAR-10 example use."""

import numpy as np

LEAST_EXAMPLES = 10  # of a client


def balanced_dirichlet(
    rng: np.random.Generator | np.random.RandomState, labels: np.ndarray, num_clients: int, alpha: float
) -> list[np.ndarray]:
    """Divide each class by shares from Dir(alpha), among those clients alone that have less than an equal part of all.

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
        If there are fewer than 10 images for each client.
    """
    if len(labels) < (least := LEAST_EXAMPLES * num_clients):
        raise ValueError(f"{len(labels)} images for {num_clients} clients: allowed are {least} or more")
    parts = [np.empty(0, int)] * num_clients
    while min(map(len, parts)) < LEAST_EXAMPLES:
        parts = [np.empty(0, int)] * num_clients
        for label in np.unique(labels):
            shuffled = rng.permutation(np.flatnonzero(labels == label))
            wanting = np.array([len(part) < len(labels) / num_clients for part in parts])
            shares = rng.dirichlet(np.full(num_clients, alpha)) * wanting
            ends = (np.cumsum(shares / shares.sum()) * len(shuffled)).astype(int)
            parts = [np.append(*pair) for pair in zip(parts, np.split(shuffled, ends[:-1]), strict=True)]
    return parts
