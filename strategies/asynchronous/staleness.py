"""What an update weighs by its staleness: the number of aggregations since its node got the model that it began with.

The functions are those of Xie et al., "Asynchronous Federated Optimization" (arXiv:1903.03934, Section 5.2). All give
a fresh update the weight 1.
"""

from collections.abc import Callable

Staleness = Callable[[int], float]


def constant(staleness: int) -> float:
    """Return 1 for every staleness."""
    return 1.0


def polynomial(exponent: float) -> Staleness:
    """Return ``(1 + staleness)^-exponent``; FedBuff's own has the exponent 0.5.

    Raises
    ------
    ValueError
        If the exponent is negative.
    """
    if not exponent >= 0:
        raise ValueError(f"exponent = {exponent}: must be a number >= 0")
    return lambda staleness: (1.0 + staleness) ** -exponent


def hinge(slope: float, delay: float) -> Staleness:
    """Return 1 up to a staleness of `delay`, and ``1 / (1 + slope * (staleness - delay))`` beyond it.

    Raises
    ------
    ValueError
        If one is negative.
    """
    if not (slope >= 0 and delay >= 0):
        raise ValueError(f"slope, delay = {slope}, {delay}: must be numbers >= 0")
    return lambda staleness: 1.0 if staleness <= delay else 1.0 / (1.0 + slope * (staleness - delay))
