"""Which gain a link really has, given the one that a planner sees: a quantile to plan with."""

from math import erfc, sqrt
from statistics import NormalDist

import numpy as np

from espalier.sim.radio import Radio, los_probability, path_loss_los_db, path_loss_nlos_db

LEAST_DEVIATION_DB = 1e-9  # where a link has no shadowing, the gain is known: a step would have no quantiles to find
PRECISION_DB = 1e-11
MOST_STEPS = 100
_erfc = np.frompyfunc(erfc, 1, 1)


def gain_quantile(
    observed: np.ndarray, distance_metres: np.ndarray, radio: Radio, *, error_db: float, share: float
) -> np.ndarray:
    """Return the gains that the true ones fall short of with a given probability, once the observed ones are known.

    The planner sees ``G' = G + e`` in dB with ``e ~ N(0, error_db^2)``, and knows the distance d. Before it sees
    anything, ``G ~ sum_k P_k(d) N(-PL_k(d), s_k^2)`` over k = with and without a line of sight (TR 38.901): that is how
    `espalier.sim.radio.draw_gains` draws. By Bayes' rule the gain given G' is again a mixture of two normals,

        weights   w_k ~ P_k N(G'; -PL_k, s_k^2 + error_db^2)
        means     m_k = (G' s_k^2 - PL_k error_db^2) / (s_k^2 + error_db^2)
        variances v_k = s_k^2 error_db^2 / (s_k^2 + error_db^2)

    and the gain returned is the q with ``sum_k w_k Phi((q - m_k) / sqrt(v_k)) = share``.

    What a planner makes of these gains cannot spoil the probability: whom it selects depends on the observed gains
    alone, which are what is conditioned on. With ``G' - z error_db`` instead, which leaves out what is known of the
    gains before, those selected would be those whose gains look better than they are.

    Parameters
    ----------
    observed : np.ndarray
        ``(U,)``: linear power gains that a planner sees.
    distance_metres : np.ndarray
        ``(U,)``: distances on the ground.
    radio : Radio
        Carrier, antenna heights and shadowing.
    error_db : float
        Standard deviation of the planner's error. With 0 the gains are those observed.
    share : float
        The probability, above 0 and below 1.

    Returns
    -------
    np.ndarray
        ``(U,)``: linear power gains.

    Raises
    ------
    ValueError
        If `share` is not allowed.
    """
    if not 0 < share < 1:
        raise ValueError(f"share = {share}: must be a number > 0 and < 1")
    if error_db == 0:
        return observed
    weight, mean, deviation = _posterior_db(10 * np.log10(observed), distance_metres, radio, error_db)
    return 10 ** (_mixture_quantile(weight, mean, deviation, share) / 10)


def _posterior_db(
    observed_db: np.ndarray, distance_metres: np.ndarray, radio: Radio, error_db: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return weights, means and standard deviations, each ``(2, U)``, of the gains in dB given the observed ones."""
    los = los_probability(distance_metres)
    prior = np.stack([-path_loss_los_db(distance_metres, radio), -path_loss_nlos_db(distance_metres, radio)])
    spread = np.maximum([[radio.shadowing_los_db], [radio.shadowing_nlos_db]], LEAST_DEVIATION_DB) ** 2
    total = spread + error_db**2
    with np.errstate(divide="ignore"):  # A link that certainly has a line of sight.
        log_weight = np.log(np.stack([los, 1 - los])) - (np.log(total) + (observed_db - prior) ** 2 / total) / 2
    weight = np.exp(log_weight - log_weight.max(axis=0))
    mean = (observed_db * spread + prior * error_db**2) / total
    deviation = np.broadcast_to(np.sqrt(spread / total) * error_db, mean.shape)
    return weight / weight.sum(axis=0), mean, deviation


def _mixture_quantile(weight: np.ndarray, mean: np.ndarray, deviation: np.ndarray, share: float) -> np.ndarray:
    """Return the quantiles ``(U,)`` of mixtures of normals ``(K, U)``: Newton's method between bounds that close in."""
    of_each = mean + NormalDist().inv_cdf(share) * deviation
    # No component has more than the share below the lowest of their quantiles, and none less below the highest.
    low, high = of_each.min(axis=0), of_each.max(axis=0)
    found = (weight * of_each).sum(axis=0).clip(low, high)
    for _ in range(MOST_STEPS):
        scaled = (found - mean) / deviation
        below = (weight * (_erfc(-scaled / sqrt(2)) / 2).astype(float)).sum(axis=0) - share
        density = (weight * np.exp(-(scaled**2) / 2) / deviation).sum(axis=0) / sqrt(2 * np.pi)
        low, high = np.where(below < 0, found, low), np.where(below < 0, high, found)
        # Where the density is 0, or tiny, the middle is next.
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            step = found - below / density
        following = np.where((step > low) & (step < high), step, (low + high) / 2)
        moved, found = np.abs(following - found).max(initial=0.0), following
        if moved < PRECISION_DB:
            break
    return found
