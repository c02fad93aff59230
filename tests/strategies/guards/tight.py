"""The guard with tight bounds, as `guard.update-norm=10 guard.activation-norm=5` ask for it."""

from espalier.strategies import Guard


def tight(mode="leave-out"):
    return Guard(mode, 10.0, 5.0)
