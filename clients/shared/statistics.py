"""Statistics in a model: what normalisation layers keep of the data they saw, as distinct from weights."""

from typing import Final

import numpy as np

VARIANCE: Final = "running_var"
STATISTICS: Final = frozenset({"running_mean", VARIANCE})


def is_statistic(name: str) -> bool:
    """Return whether an array of a model is a running statistic, by the name that PyTorch's normalisations give it.

    Gradients do not move these arrays. They can be averaged and mixed safely, but not extrapolated: a variance may
    become negative, and the model's outputs NaN.
    """
    return last_name(name) in STATISTICS


def is_beside_weights(name: str, dtype: np.dtype) -> bool:
    """Return whether an array of a model is nothing that an optimizer moves: a running statistic, or a counter."""
    return is_statistic(name) or dtype.kind in "biu"


def last_name(name: str) -> str:
    """Return the name of an array within its module."""
    return name.rpartition(".")[2]
