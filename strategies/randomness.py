"""Seeds derived from one seed, Flower's sampling made to follow them, and how many a sample has."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


def derived_seed(*parts: int | str) -> int:
    """Return a 32-bit seed that depends on all of `parts` and on nothing else.

    The same parts give the same seed in every process and on every machine.
    """
    return random.Random("/".join(map(str, parts))).getrandbits(32)


def sample_size(num_nodes: int, share: float) -> int:
    """Return how many nodes a sample of a share has, as Flower's strategies count: rounded down, and at least 1."""
    return max(1, int(num_nodes * share))


@contextmanager
def seeded_globals(seed: int | None) -> Iterator[None]:
    """Seed Python's and NumPy's global generators inside the block and put them back afterwards.

    Flower's strategies sample nodes, and add noise, with the global generators. Inside this block they follow
    `seed`, and nobody outside notices. None: what they draw can't be foretold.
    """
    # As a tuple, NumPy's state takes twice as long, there and back.
    python_state, numpy_state = random.getstate(), np.random.get_state(legacy=False)  # noqa: NPY002
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  # None: the system's entropy, as for Python's
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
