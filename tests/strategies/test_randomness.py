"""What strategies draw from global generators follows a seed, and nobody outside notices."""

import random

import numpy as np
import pytest

from espalier.strategies.randomness import seeded_globals


def draws():
    """Return what the global generators give next; a normal of NumPy's is drawn with another, which is kept."""
    return random.random(), np.random.normal(), np.random.random()  # noqa: NPY002


@pytest.mark.parametrize("seed", [0, 7, None])
def test_outside_all_goes_on_as_if_nothing_had_been_drawn(seed):
    with seeded_globals(3):
        expected = [draws(), draws()]
    with seeded_globals(3):
        found = [draws()]
        with seeded_globals(seed):
            draws()
        found.append(draws())
    assert found == expected


def test_inside_it_follows_the_seed_alone():
    found = []
    for seed in (1, 2, 1):
        draws()
        with seeded_globals(seed):
            found.append(draws())
    assert found[0] == found[2] != found[1]
