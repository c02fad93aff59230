"""RawHFL's convergence bound as plain functions, with the paper's symbols."""

from math import sqrt

import numpy as np
from numpy.typing import ArrayLike

SMALLEST, LARGEST = np.finfo(float).tiny, np.finfo(float).max
ROUNDING = 1e-9


def rawhfl_learning_rate_limit(*, beta: float, E: int, L: int) -> float:
    """Return the learning rate below which Theorem 1 is stated: ``min(1 / (2 sqrt(5) beta L), 1 / (beta E L))``.

    The proof's Lemma 2 divides by ``1 - 20 (beta eta E L)^2``, which takes ``eta < 1 / (2 sqrt(5) beta E L)`` to be
    positive, and then leaves the divisor out. So read the bound as an approximation for learning rates well below.
    """
    return min(1 / (2 * sqrt(5) * beta * L), 1 / (beta * E * L))


def rawhfl_dominating_terms(
    *,
    F_inf: float,
    eta: float,
    beta: float,
    sigma2: float,
    E: int,
    K: int,
    L: int,
    alpha_b: np.ndarray,
    cell: np.ndarray,
    alpha_u: np.ndarray,
) -> float:
    """Return what remains of Corollary 1's bound for a small learning rate, if the same clients train always (eq. 27).

    Parameters
    ----------
    F_inf : float
        By how much the expected global loss falls, above 0.
    eta, beta, sigma2, L, alpha_b, cell
        As in `rawhfl_bound`.
    E, K : int
        Edge rounds of a global round, and global rounds.
    alpha_u : np.ndarray
        Weights of the U clients within their cells.

    Raises
    ------
    ValueError
        If a value is not allowed; `eta` may be any above 0.
    """
    _check_range("eta", eta, SMALLEST, LARGEST, "0 < eta")
    squares = _squares_of_weights(F_inf, beta, sigma2, E, K, L, alpha_b, cell, alpha_u)
    return 2 * F_inf / (eta * E * K * L) + 2 * beta * eta * sigma2 * squares


def rawhfl_best_learning_rate(
    *,
    F_inf: float,
    beta: float,
    sigma2: float,
    E: int,
    K: int,
    L: int,
    alpha_b: np.ndarray,
    cell: np.ndarray,
    alpha_u: np.ndarray,
) -> float:
    """Return the learning rate with the least `rawhfl_dominating_terms`, eta* of Remark 3; parameters as there.

    With equal weights it is ``sqrt(B U / (E K L) * F_inf / (beta sigma2))``, U clients in each of B cells. It can be
    above `rawhfl_learning_rate_limit`, where the theorem says nothing: compare the two.

    Raises
    ------
    ValueError
        If a value is not allowed, or `sigma2` is 0.
    """
    _check_range("sigma2", sigma2, SMALLEST, LARGEST, "0 < sigma2")
    squares = _squares_of_weights(F_inf, beta, sigma2, E, K, L, alpha_b, cell, alpha_u)
    return sqrt(F_inf / (E * K * L * beta * sigma2 * squares))


def rawhfl_bound(
    *,
    f: np.ndarray,
    eta: float,
    beta: float,
    sigma2: float,
    epsilon2_0: float,
    epsilon2_1: float,
    L: int,
    alpha_b: np.ndarray,
    cell: np.ndarray,
    alpha_u: np.ndarray,
    L_u: np.ndarray,
    p_sc: np.ndarray | float = 1.0,
    g2: np.ndarray | float = 0.0,
) -> dict[str, float]:
    """Return RawHFL's bound on the average squared norm of the global gradient (Theorem 1, eq. 21), by its terms.

    Parameters
    ----------
    f : np.ndarray
        Expected global loss before each of the K global rounds and after the last, shape ``(K + 1,)``.
    eta : float
        Learning rate.
    beta : float
        Smoothness of the losses.
    sigma2 : float
        Bound on the variance of the stochastic gradients.
    epsilon2_0, epsilon2_1 : float
        Bounds on the divergence between client and edge, and between edge and global, losses.
    L : int
        Most local rounds.
    alpha_b : np.ndarray
        Weights of the B cells.
    cell : np.ndarray
        Index of each of the U clients' cell, shape ``(U,)``.
    alpha_u : np.ndarray
        Weights of the clients within their cells in each global and edge round, shape ``(K, E, U)``; 0 for who is not
        selected.
    L_u : np.ndarray
        Local rounds of the clients. This and the next two broadcast to the shape ``(K, E, U)``.
    p_sc : np.ndarray (default: 1.0)
        Probabilities that the clients' gradients arrive in time, above 0.
    g2 : np.ndarray (default: 0.0)
        ``sum_l E ||g_u(w_u^l)||^2`` over the client's local rounds. Where `p_sc` is 1 it plays no part.

    Returns
    -------
    dict[str, float]
        ``loss``, ``variance``, ``client_edge``, ``edge_global``, ``wireless`` and their sum ``bound``.

    Raises
    ------
    ValueError
        If a value is not what the theorem holds for: `eta` below its limit, somebody selected in every global round,
        `L_u` from 1 to `L` and `p_sc` above 0 and up to 1 where selected, K + 1 losses, no negative bound or weight.
    """
    alpha_u, of_cell = _weights(alpha_b, cell, alpha_u)
    (K, E, _), selected, f = alpha_u.shape, alpha_u > 0, np.asarray(f, dtype=float)
    if f.shape != (K + 1,):
        raise ValueError(f"f has shape {f.shape}: allowed is {(K + 1,)}, before each of the {K} rounds and after all")
    # Ones are harmless where the weight is 0; the probability there may be 0.
    L_u, p_sc, g2 = (np.where(selected, values, 1.0) for values in (L_u, p_sc, g2))
    _check_constants(eta=eta, beta=beta, E=E, L=L, sigma2=sigma2, epsilon2_0=epsilon2_0, epsilon2_1=epsilon2_1)
    _check_arrival(p_sc[selected], g2[selected])
    _check_range("L_u", L_u[selected], 1, L, f"1 <= L_u <= L = {L}")
    _check_range("f", f, -LARGEST, LARGEST, "finite losses")
    Omega = (of_cell * alpha_u * L_u).sum(axis=(1, 2))
    N_1 = _N_1(eta=eta, beta=beta, E=E, L=L, of_cell=of_cell, alpha_u=alpha_u)
    N_2 = 1 + 20 * (beta * eta * E * L) ** 2
    lost = (of_cell * alpha_u * _N_u(eta=eta, beta=beta, E=E, L=L, alpha_u=alpha_u) * (1 / p_sc - 1) * g2).sum((1, 2))
    terms = {
        "loss": 2 / (eta * K) * (-np.diff(f) / Omega).sum(),
        "variance": 2 * beta * eta * L * sigma2 / K * (N_1 / Omega).sum(),
        "client_edge": 18 * E * beta**2 * epsilon2_0 * eta**2 * L**3 / K * (N_2 / Omega).sum(),
        "edge_global": 20 * L * beta**2 * epsilon2_1 * eta**2 * E**3 / K * (1 / Omega).sum(),
        "wireless": 2 * beta * eta * L / K * (lost / Omega).sum(),
    }
    return _with_sum(terms)


def rawhfl_corollary_bound(
    *,
    f_0: float,
    f_K: float,
    eta: float,
    beta: float,
    sigma2: float,
    epsilon2_0: float,
    epsilon2_1: float,
    L: int,
    alpha_b: np.ndarray,
    cell: np.ndarray,
    alpha_u: np.ndarray,
    p_sc: np.ndarray | float = 1.0,
    g2: np.ndarray | float = 0.0,
) -> dict[str, float]:
    """Return RawHFL's bound when all clients make L local rounds (Corollary 1; eq. 26 where `p_sc` is 1), by its terms.

    The weights of each cell's selected clients, and of the cells, must sum to 1. Parameters and terms as in
    `rawhfl_bound`, but for

    Parameters
    ----------
    f_0, f_K : float
        Expected global loss at the start and at the end.

    Raises
    ------
    ValueError
        As `rawhfl_bound`, and if weights do not sum to 1.
    """
    alpha_u, of_cell = _weights(alpha_b, cell, alpha_u)
    (K, E, _), selected = alpha_u.shape, alpha_u > 0
    in_cell = np.asarray(cell) == np.arange(np.size(alpha_b))[:, np.newaxis]
    for name, sums in (("alpha_b", np.sum(alpha_b)), ("alpha_u of a cell", alpha_u @ in_cell.T)):
        _check_range(f"sum of {name}", sums, 1 - ROUNDING, 1 + ROUNDING, "weights that sum to 1")
    p_sc, g2 = (np.where(selected, values, 1.0) for values in (p_sc, g2))
    _check_constants(eta=eta, beta=beta, E=E, L=L, sigma2=sigma2, epsilon2_0=epsilon2_0, epsilon2_1=epsilon2_1)
    _check_arrival(p_sc[selected], g2[selected])
    _check_range("f_0 and f_K", [f_0, f_K], -LARGEST, LARGEST, "finite losses")
    N_1 = _N_1(eta=eta, beta=beta, E=E, L=L, of_cell=of_cell, alpha_u=alpha_u)
    N_u = _N_u(eta=eta, beta=beta, E=E, L=L, alpha_u=alpha_u)
    terms = {
        "loss": 2 * (f_0 - f_K) / (eta * E * K * L),
        "variance": 2 * beta * eta * sigma2 / (E * K) * N_1.sum(),
        "client_edge": 18 * beta**2 * epsilon2_0 * eta**2 * L**2 * (1 + 20 * (beta * eta * E * L) ** 2),
        "edge_global": 20 * beta**2 * epsilon2_1 * eta**2 * E**2,
        "wireless": 2 * beta * eta / (E * K) * (of_cell * alpha_u * N_u * (1 / p_sc - 1) * g2).sum(),
    }
    return _with_sum(terms)


def _squares_of_weights(
    F_inf: float,
    beta: float,
    sigma2: float,
    E: int,
    K: int,
    L: int,
    alpha_b: np.ndarray,
    cell: np.ndarray,
    alpha_u: np.ndarray,
) -> float:
    """Return the sum of ``(alpha_b alpha_u)^2`` over all clients, after a look at what goes with it."""
    for name, value in (("F_inf", F_inf), ("beta", beta)):
        _check_range(name, value, SMALLEST, LARGEST, f"0 < {name}")
    _check_range("sigma2", sigma2, 0, LARGEST, "0 <= sigma2")
    for name, value in (("E", E), ("K", K), ("L", L)):
        if not isinstance(value, int | np.integer) or value < 1:
            raise ValueError(f"{name} = {value}: allowed is an integer of 1 or more")
    alpha_u, of_cell = _weights(alpha_b, cell, np.asarray(alpha_u, dtype=float)[np.newaxis, np.newaxis])
    return float(((of_cell * alpha_u) ** 2).sum())


def _N_1(*, eta: float, beta: float, E: int, L: int, of_cell: np.ndarray, alpha_u: np.ndarray) -> np.ndarray:
    be = beta * eta
    return (
        60 * (be * E * L) ** 3 + 3 * be * E * L + (of_cell * (of_cell + 4 * E * L * be) * alpha_u**2).sum(axis=(1, 2))
    )


def _N_u(*, eta: float, beta: float, E: int, L: int, alpha_u: np.ndarray) -> np.ndarray:
    be = beta * eta
    return E + 3 * be * L + 4 * be * E * (alpha_u + 15 * E * be**2 * L**3)


def _weights(alpha_b: np.ndarray, cell: np.ndarray, alpha_u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the clients' weights and their cells', checked."""
    alpha_b, cell, alpha_u = np.asarray(alpha_b, dtype=float), np.asarray(cell), np.asarray(alpha_u, dtype=float)
    if alpha_u.ndim != 3 or 0 in alpha_u.shape:
        raise ValueError(f"alpha_u has shape {alpha_u.shape}: allowed is (K, E, U), none of them 0")
    if alpha_b.ndim != 1 or not alpha_b.size:
        raise ValueError(f"alpha_b has shape {alpha_b.shape}: allowed is (B,), one weight per cell")
    if cell.shape != alpha_u.shape[2:] or cell.dtype.kind not in "iu":
        raise ValueError(f"cell has shape {cell.shape} and type {cell.dtype}: allowed are {alpha_u.shape[2]} integers")
    _check_range("cell", cell, 0, alpha_b.size - 1, f"indices of the {alpha_b.size} cells")
    _check_range("alpha_b", alpha_b, 0, LARGEST, "0 <= alpha_b")
    _check_range("alpha_u", alpha_u, 0, LARGEST, "0 <= alpha_u")
    taken = alpha_b[cell] * alpha_u > 0
    if idle := np.flatnonzero(~taken.any(axis=(1, 2))).tolist():
        raise ValueError(f"alpha_u = 0 for all clients in global round {idle[0]}: the theorem divides by their rounds")
    return alpha_u, alpha_b[cell]


def _check_constants(
    *, eta: float, beta: float, E: int, L: int, sigma2: float, epsilon2_0: float, epsilon2_1: float
) -> None:
    if not isinstance(L, int | np.integer) or L < 1:
        raise ValueError(f"L = {L}: allowed is an integer of 1 or more")
    _check_range("beta", beta, SMALLEST, LARGEST, "0 < beta")
    for name, value in (("sigma2", sigma2), ("epsilon2_0", epsilon2_0), ("epsilon2_1", epsilon2_1)):
        _check_range(name, value, 0, LARGEST, f"0 <= {name}")
    limit = rawhfl_learning_rate_limit(beta=beta, E=E, L=L)
    if not 0 < eta < limit:
        raise ValueError(f"eta = {eta}: the theorem holds for 0 < eta < {limit:.6g}")


def _check_arrival(p_sc: np.ndarray, g2: np.ndarray) -> None:
    _check_range("p_sc", p_sc, SMALLEST, 1, "0 < p_sc <= 1")
    _check_range("g2", g2, 0, LARGEST, "0 <= g2")


def _check_range(name: str, values: ArrayLike, low: float, high: float, holds_for: str) -> None:
    least, most = np.min(values), np.max(values)  # not a number if one of them is not
    if not low <= least <= most <= high:
        raise ValueError(f"{name} from {least:g} to {most:g}: the theorem holds for {holds_for}")


def _with_sum(terms: dict[str, float]) -> dict[str, float]:
    terms = {name: float(value) for name, value in terms.items()}
    return {**terms, "bound": sum(terms.values())}
