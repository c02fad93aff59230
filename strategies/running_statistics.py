"""Statistics in a model: what normalisation layers keep of the data they saw, as distinct from weights."""

from typing import Final

STATISTICS: Final = frozenset({"running_mean", "running_var"})


def is_statistic(name: str) -> bool:
    """Return whether an array of a model is a running statistic, by the name that PyTorch's normalisations give it.

    Such a one is no point that gradients move. It may be averaged, and mixed, but to go further than an update says
    leaves what is possible: a variance becomes negative, and the model's outputs NaN.
    """
    return name.rpartition(".")[2] in STATISTICS
