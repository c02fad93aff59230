"""Training examples that a client holds back, to tell good rounds from others without the test set."""

import numpy as np
import torch

from espalier.clients.randomness import client_generator


def kept_and_held(num_examples: int, share: float, seed: int, client: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which of a client's examples it trains on, and which it holds back.

    Parameters
    ----------
    num_examples : int
        Training examples of the client.
    share : float
        Of these to hold back, from 0 to below 1: the nearest whole number, and all but one at most. So a client of few
        examples may hold back none.
    seed, client : int
        Decide which.

    Returns
    -------
    tuple[np.ndarray, np.ndarray]
        ``int64``, sorted.
    """
    count = max(min(int(share * num_examples + 0.5), num_examples - 1), 0)
    order = torch.randperm(num_examples, generator=client_generator(seed, client, 0, "validation")).numpy()
    return np.sort(order[count:]), np.sort(order[:count])
