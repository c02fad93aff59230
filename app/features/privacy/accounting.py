"""Epsilon of noisy releases, by Google's ``dp-accounting``, and the noise that keeps epsilon within a budget."""

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import dp_accounting as dp

from espalier.app.features.privacy.releases import Release, Releases

# Of Renyi divergences. The library's own list has many more, which take seconds for fixed-size samples and change the
# third digit of epsilon at most; orders below 2 do not converge for some Poisson samples.
ORDERS: Final = (2, 2.25, 2.5, 2.75, 3, 3.5, *range(4, 21), 24, 28, 32, 40, 48, 64, 128, 512)
MOST_NOISE: Final = 1e6  # the largest multiplier that is looked for
PRECISION: Final = 1e-3  # of a multiplier that is found, relative


def epsilon_of(releases: Releases, delta: float) -> float:
    """Return epsilon of all releases together at a delta; infinite where one has no noise, 0 where there are none.

    It is the lower of two upper bounds. The one composes Renyi divergences of Poisson samples (Mironov et al.,
    arXiv:1908.10530), or of fixed-size ones (Wang et al., arXiv:1808.00087, theorem 27), as the library computes them.
    The other takes everybody to be in every release, which is exact for Gaussians (Balle and Wang, arXiv:1805.06530):
    the first is not always below it.

    Parameters
    ----------
    releases : Mapping[Release, int]
        What was released, and how often: all of Poisson samples, or none.
    delta : float
        Between 0 and 1.
    """
    return _epsilon(frozenset((release, count) for release, count in releases.items() if count), delta)


@lru_cache(maxsize=4096)
def _epsilon(releases: frozenset[tuple[Release, int]], delta: float) -> float:
    pairs = sorted(releases, key=str)  # a sum in another order has other last bits
    if not pairs:
        return 0.0
    if any(release.noise <= 0 for release, _ in pairs):
        return math.inf
    together = 1 / math.sqrt(sum(count / release.multiplier**2 for release, count in pairs))
    of_all = float(dp.get_epsilon_gaussian(together, delta))
    if all(release.asked >= release.of for release, _ in pairs):
        return of_all
    relations = dp.NeighboringRelation
    poisson = any(release.poisson for release, _ in pairs)
    accountant = dp.rdp.RdpAccountant(ORDERS, relations.REPLACE_SPECIAL if poisson else relations.REPLACE_ONE)
    for release, count in pairs:
        accountant.compose(_event(release), count)
    return min(of_all, float(accountant.get_epsilon(delta)))


def _event(release: Release) -> Any:
    gaussian = dp.GaussianDpEvent(release.multiplier)
    if release.asked >= release.of:
        return gaussian
    if release.poisson:
        return dp.PoissonSampledDpEvent(release.asked / release.of, gaussian)
    return dp.SampledWithoutReplacementDpEvent(release.of, release.asked, gaussian)


@lru_cache(maxsize=4096)
def noise_within(epsilon: float, delta: float, release: Release, count: int) -> float:
    """Return the least noise multiplier, to `PRECISION`, with which so many releases stay within epsilon.

    Parameters
    ----------
    epsilon, delta : float
        The budget.
    release : Release
        One of them; its noise does not matter.
    count : int
        How many.

    Raises
    ------
    ValueError
        If no multiplier up to `MOST_NOISE` does.
    """

    def is_within(noise: float) -> bool:
        return epsilon_of({replace(release, noise=noise): count}, delta) <= epsilon

    low, high = 1e-2, 1.0
    while not is_within(high):
        low, high = high, 4 * high
        if high > MOST_NOISE:
            raise ValueError(f"no noise multiplier up to {MOST_NOISE:g} does")
    while high > low * (1 + PRECISION):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if is_within(middle) else (middle, high)
    return high
