"""The papers' formulas as plain functions, with the papers' symbols: payload sizes and convergence bounds."""

from collections.abc import Sequence
from math import ceil, fsum, log2, sqrt

ROUNDING = 1e-6


def phi_local(*, n_batches: int, N: int, Z_c: int, D_u: int, w: int = 32) -> int:
    """Return the bits of one local epoch of split training (PHSFL, eq. 17).

    Parameters
    ----------
    n_batches : int
        Mini-batches of the epoch.
    N : int
        Samples per mini-batch.
    Z_c : int
        Values per sample at the cut.
    D_u : int
        The client's training samples.
    w : int (default: 32)
        Floating-point precision in bits; the paper counts w + 1 bits a value.
    """
    return n_batches * (2 * N * Z_c * (w + 1) + N * (ceil(log2(D_u)) + 1))


def phi_offload(*, Z_0: int, w: int = 32) -> int:
    """Return the bits of the client block, `Z_0` parameters, in one direction."""
    return Z_0 * (w + 1)


def phi_phsfl(*, kappa_0: int, n_batches: int, N: int, Z_c: int, Z_0: int, D_u: int, w: int = 32) -> int:
    """Return the bits of one client in one edge round of split training, both directions, `kappa_0` local epochs."""
    local = phi_local(n_batches=n_batches, N=N, Z_c=Z_c, D_u=D_u, w=w)
    return kappa_0 * local + 2 * phi_offload(Z_0=Z_0, w=w)


def phi_hfl(*, Z: int, w: int = 32) -> int:
    """Return the bits of one client in one edge round of hierarchical FL: the whole model, `Z` parameters, and back."""
    return 2 * Z * (w + 1)


def phsfl_learning_rate_limit(*, beta: float, kappa_0: int, kappa_1: int) -> float:
    """Return the learning rate below which PHSFL's Theorem 1 holds: ``1 / (2 sqrt(5) beta kappa_1 kappa_0)``.

    Here `kappa_0` is what it is in `phsfl_bound`: SGD steps, not epochs.
    """
    return 1 / (2 * sqrt(5) * beta * kappa_1 * kappa_0)


def phsfl_bound(
    *,
    f_0: float,
    f_T: float,
    T: int,
    eta: float,
    beta: float,
    sigma2: float,
    epsilon2_0: float,
    epsilon2_1: float,
    kappa_0: int,
    kappa_1: int,
    alpha_b: Sequence[float],
    alpha_u: Sequence[Sequence[float]],
) -> dict[str, float]:
    """Return PHSFL's bound on the average squared norm of the global gradient (Theorem 1, eq. 21), by its terms.

    The proof divides by ``1 - 12 (beta eta kappa_0)^2`` and ``1 - 20 (beta eta kappa_1 kappa_0)^2`` (eqs. 44 and 52),
    and then leaves these divisors out (eqs. 45 and 53), though they are below 1. So read the bound as an approximation
    for learning rates well below the limit: at a tenth of it they are 0.99 or more.

    Parameters
    ----------
    f_0, f_T : float
        Loss at the start and at the end.
    T : int
        SGD steps of the whole training: global rounds times `kappa_1` times `kappa_0`.
    eta : float
        Learning rate.
    beta : float
        Smoothness of the loss.
    sigma2 : float
        Bound on the variance of the stochastic gradients.
    epsilon2_0, epsilon2_1 : float
        Bounds on the divergence between user and ES, and between ES and CS, losses.
    kappa_0 : int
        SGD steps of a client in an edge round (the paper's eq. 1): its local epochs times the mini-batches of an epoch.
        In the payloads (Section V and eq. 17, `phi_phsfl`) the same symbol counts the epochs.
    kappa_1 : int
        Edge rounds per global round.
    alpha_b : Sequence[float]
        Weights of the edge servers; they sum to 1.
    alpha_u : Sequence[Sequence[float]]
        Weights of each edge server's users, within it; they sum to 1 at each.

    Returns
    -------
    dict[str, float]
        ``loss``, ``variance``, ``gamma`` (user-ES and ES-CS variance), ``user_es``, ``es_cs`` and their sum ``bound``.

    Raises
    ------
    ValueError
        If `eta` is not below the theorem's limit, or weights are negative or do not sum to 1.
    """
    for name, weights in (("alpha_b", alpha_b), *(("alpha_u of an edge server", users) for users in alpha_u)):
        if not (min(weights, default=0.0) >= 0 and abs(fsum(weights) - 1) <= ROUNDING):
            given = f"{name} from {min(weights, default=0.0):g}, with the sum {fsum(weights):.9g}"
            raise ValueError(f"{given}: the theorem holds for weights of 0 or more that sum to 1")
    limit = phsfl_learning_rate_limit(beta=beta, kappa_0=kappa_0, kappa_1=kappa_1)
    if not 0 < eta < limit:
        raise ValueError(f"eta = {eta}: the theorem holds for 0 < eta < {limit:.6g}")
    squares = [sum(a**2 for a in users) for users in alpha_u]
    once = sum(a * s for a, s in zip(alpha_b, squares, strict=True))
    twice = sum(a**2 * s for a, s in zip(alpha_b, squares, strict=True))
    be2 = (beta * eta) ** 2
    gamma_0 = 4 * be2 * kappa_0**2 * (1 - once)
    gamma_1 = 80 * kappa_1**2 * be2**2 * kappa_0**4 * (1 - once) + 4 * kappa_1 * kappa_0 * be2 * (once - twice)
    terms = {
        "loss": 2 * (f_0 - f_T) / (eta * T),
        "variance": beta * eta * sigma2 * twice,
        "gamma": (gamma_0 + gamma_1) * sigma2,
        "user_es": 12 * be2 * kappa_0**2 * (1 + 20 * kappa_0**2 * kappa_1**2 * be2) * epsilon2_0,
        "es_cs": 20 * be2 * kappa_1**2 * kappa_0**2 * epsilon2_1,
    }
    return {**terms, "bound": sum(terms.values())}


def sfl_v1_learning_rate_limit(*, S: float, tau: int, alpha: Sequence[float]) -> float:
    """Return the largest learning rate of SFL-V1's Proposition 1, for smoothness `S` and clients' weights `alpha`."""
    return min(1 / (16 * S * tau), 1 / (8 * S * len(alpha) * tau * sum(a**2 for a in alpha)))


def sfl_v1_bound(
    *,
    f_0: float,
    f_star: float,
    eta: Sequence[float],
    S: float,
    tau: int,
    alpha: Sequence[float],
    sigma2: Sequence[float],
    epsilon2: float,
) -> float:
    """Return SFL-V1's bound on the weighted average squared gradient norm (SFL cut-layer paper, Proposition 1, eq. 6).

    It holds for any cut layer: none of the arguments depends on it.

    Parameters
    ----------
    f_0, f_star : float
        Loss at the start and at the optimum.
    eta : Sequence[float]
        Learning rate of each of the T rounds.
    S : float
        Smoothness of the loss.
    tau : int
        Model updates per round: ``ceil(E * D_k / B_k)``.
    alpha, sigma2 : Sequence[float]
        Clients' weights and variances.
    epsilon2 : float
        Bound on the clients' divergence.

    Raises
    ------
    ValueError
        If a learning rate is above the proposition's limit.
    """
    limit = sfl_v1_learning_rate_limit(S=S, tau=tau, alpha=alpha)
    if not 0 < min(eta) <= max(eta) <= limit:
        raise ValueError(f"eta up to {max(eta)}: the proposition holds for 0 < eta <= {limit:.6g}")
    noise = sum(a**2 * (s + epsilon2) for a, s in zip(alpha, sigma2, strict=True))
    first = 4 * (f_0 - f_star) / (len(eta) * tau)
    return first + 16 * len(alpha) * S * tau / len(eta) * noise * sum(e**2 for e in eta)
