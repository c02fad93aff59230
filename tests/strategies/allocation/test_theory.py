"""RawHFL's bound against values worked out by hand, and its special case."""

from math import sqrt

import numpy as np
import pytest

from espalier.strategies.allocation.theory import (
    rawhfl_best_learning_rate,
    rawhfl_bound,
    rawhfl_corollary_bound,
    rawhfl_dominating_terms,
    rawhfl_learning_rate_limit,
)
from tests.strategies.quadratics import worlds

COMMON = {"eta": 0.01, "beta": 2.0, "sigma2": 0.7, "epsilon2_0": 0.2, "epsilon2_1": 0.3, "L": 3}
# Two global rounds of two edge rounds; cell 0 has clients 0 and 1, cell 1 has clients 2 and 3.
WEIGHTS = {"alpha_b": [0.25, 0.75], "cell": [0, 0, 1, 1]}
ALPHA_U = np.array([[[0.5, 0.5, 1, 0], [1, 0, 0.2, 0.8]], [[0.5, 0.5, 0.5, 0.5], [0, 1, 0, 1]]])


def test_the_limit_on_the_learning_rate():
    assert rawhfl_learning_rate_limit(beta=2.0, E=2, L=3) == pytest.approx(1 / (12 * sqrt(5)))
    assert rawhfl_learning_rate_limit(beta=2.0, E=10, L=3) == pytest.approx(1 / 60)


def test_theorem_1_by_hand():
    L_u = [[[1, 3, 2, 0], [2, 0, 1, 3]], [[3, 3, 1, 1], [0, 2, 0, 2]]]
    p_sc = [[[1, 0.5, 1, 0], [1, 0, 1, 0.8]], [[1, 1, 1, 1], [0, 1, 0, 1]]]
    g2 = [[[9, 4, 9, 9], [9, 9, 9, 5]], [[9] * 4] * 2]
    terms = rawhfl_bound(f=[2.5, 1.5, 1.0], alpha_u=ALPHA_U, L_u=L_u, p_sc=p_sc, g2=g2, **COMMON, **WEIGHTS)
    # Omega^0: edge round 0: 0.25 * (0.5 + 1.5) + 0.75 * 2 = 2; edge round 1: 0.25 * 2 + 0.75 * (0.2 + 2.4) = 2.45
    # Omega^1: 0.25 * 3 + 0.75 * 1 = 1.5; 0.25 * 2 + 0.75 * 2 = 2
    inverse = 1 / 4.45, 1 / 3.5
    assert terms["loss"] == pytest.approx(2 / (0.01 * 2) * (1.0 * inverse[0] + 0.5 * inverse[1]))
    # beta eta = 0.02, E L = 6, so 4 E L beta eta = 0.48: sum_b alpha_b (alpha_b + 0.48) sum_u alpha_u^2
    first = 0.25 * 0.73 * (0.5 + 1.0) + 0.75 * 1.23 * (1.0 + 0.68)
    second = 0.25 * 0.73 * (0.5 + 1.0) + 0.75 * 1.23 * (0.5 + 1.0)
    constant = 60 * 0.12**3 + 3 * 0.12
    variance = 2 * 0.02 * 3 * 0.7 / 2 * ((constant + first) * inverse[0] + (constant + second) * inverse[1])
    assert terms["variance"] == pytest.approx(variance)
    n_2 = 1 + 20 * 0.12**2
    assert terms["client_edge"] == pytest.approx(18 * 2 * 4e-4 * 0.2 * 27 / 2 * n_2 * sum(inverse))
    assert terms["edge_global"] == pytest.approx(20 * 3 * 4e-4 * 0.3 * 8 / 2 * sum(inverse))
    # N_u = E + 3 * 0.06 + 0.16 * (alpha_u + 15 * 2 * 4e-4 * 27); lost are client 1 (1/0.5 - 1) and client 3 (1/0.8 - 1)
    n_u = [2 + 0.18 + 0.16 * (alpha + 0.324) for alpha in (0.5, 0.8)]
    lost = 0.25 * 0.5 * n_u[0] * 1 * 4 + 0.75 * 0.8 * n_u[1] * 0.25 * 5
    assert terms["wireless"] == pytest.approx(2 * 0.02 * 3 / 2 * lost * inverse[0])
    assert terms["bound"] == pytest.approx(sum(v for k, v in terms.items() if k != "bound"))


def test_corollary_1_is_the_theorem_with_equal_rounds():
    rng = np.random.default_rng(0)
    received = {"p_sc": rng.uniform(0.2, 1, ALPHA_U.shape), "g2": rng.uniform(0, 9, ALPHA_U.shape)}
    for arrival in ({}, received):
        theorem = rawhfl_bound(f=[2.5, 1.7, 1.0], alpha_u=ALPHA_U, L_u=3, **COMMON, **WEIGHTS, **arrival)
        corollary = rawhfl_corollary_bound(f_0=2.5, f_K=1.0, alpha_u=ALPHA_U, **COMMON, **WEIGHTS, **arrival)
        assert corollary == pytest.approx(theorem, rel=1e-12)
        assert (corollary["wireless"] > 0) == bool(arrival)


def test_equation_26_by_hand():
    terms = rawhfl_corollary_bound(f_0=2.5, f_K=1.0, alpha_u=ALPHA_U, **COMMON, **WEIGHTS)
    assert terms["loss"] == pytest.approx(2 * 1.5 / (0.01 * 2 * 2 * 3))
    first = 0.25 * 0.73 * 1.5 + 0.75 * 1.23 * 1.68
    second = 0.25 * 0.73 * 1.5 + 0.75 * 1.23 * 1.5
    assert terms["variance"] == pytest.approx(2 * 0.02 * 0.7 / 4 * (2 * (60 * 0.12**3 + 0.36) + first + second))
    assert terms["client_edge"] == pytest.approx(18 * 4e-4 * 0.2 * 9 * (1 + 20 * 0.0144))
    assert terms["edge_global"] == pytest.approx(20 * 4e-4 * 0.3 * 4)
    assert terms["wireless"] == 0


def test_outside_of_its_assumptions_there_is_no_bound():
    given = COMMON | WEIGHTS | {"alpha_u": ALPHA_U}
    with pytest.raises(ValueError, match=r"^eta = 0\.1: the theorem holds for 0 < eta < 0\.0372"):
        rawhfl_bound(f=[1, 0, 0], L_u=1, **given | {"eta": 0.1})
    with pytest.raises(ValueError, match=r"^L_u from 4 to 4: the theorem holds for 1 <= L_u <= L = 3$"):
        rawhfl_bound(f=[1, 0, 0], L_u=4, **given)
    with pytest.raises(ValueError, match=r"^L_u from 0 to 0: the theorem holds for 1 <= L_u <= L = 3$"):
        rawhfl_bound(f=[1, 0, 0], L_u=0, **given)
    with pytest.raises(ValueError, match=r"^p_sc from 1\.5 to 1\.5: the theorem holds for 0 < p_sc <= 1$"):
        rawhfl_bound(f=[1, 0, 0], L_u=1, p_sc=1.5, **given)
    with pytest.raises(ValueError, match=r"^eta = -0\.01: the theorem holds for 0 < eta < 0\.0372"):
        rawhfl_bound(f=[1, 0, 0], L_u=1, **given | {"eta": -0.01})
    with pytest.raises(ValueError, match=r"^f has shape \(2,\): allowed is \(3,\), before each of the 2 rounds"):
        rawhfl_bound(f=[1, 0], L_u=1, **given)
    idle = ALPHA_U * [[[1]], [[0]]]
    with pytest.raises(ValueError, match=r"^alpha_u = 0 for all clients in global round 1: the theorem divides"):
        rawhfl_bound(f=[1, 0, 0], L_u=1, **given | {"alpha_u": idle})
    with pytest.raises(ValueError, match=r"^p_sc from 0 to 0: the theorem holds for 0 < p_sc <= 1$"):
        rawhfl_corollary_bound(f_0=1, f_K=0, p_sc=0.0, **given)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"sigma2": np.nan}, "sigma2 from nan to nan: the theorem holds for 0 <= sigma2"),
        ({"epsilon2_0": -5.0}, "epsilon2_0 from -5 to -5: the theorem holds for 0 <= epsilon2_0"),
        ({"beta": 0.0}, "beta from 0 to 0: the theorem holds for 0 < beta"),
        ({"L": 0}, "L = 0: allowed is an integer of 1 or more"),
        ({"g2": -1.0}, "g2 from -1 to -1: the theorem holds for 0 <= g2"),
        ({"alpha_b": [0.25]}, "cell from 0 to 1: the theorem holds for indices of the 1 cells"),
        ({"alpha_b": [-0.3, 1.3]}, "alpha_b from -0.3 to 1.3: the theorem holds for 0 <= alpha_b"),
        ({"cell": [0, 0, 1]}, "cell has shape (3,) and type int64: allowed are 4 integers"),
        ({"alpha_u": ALPHA_U[0]}, "alpha_u has shape (2, 4): allowed is (K, E, U), none of them 0"),
        ({"alpha_u": ALPHA_U * np.nan}, "alpha_u from nan to nan: the theorem holds for 0 <= alpha_u"),
        (
            {"alpha_u": ALPHA_U * [[[1]], [[0]]]},
            "alpha_u = 0 for all clients in global round 1: the theorem divides by their rounds",
        ),
    ],
)
def test_what_is_no_bound_or_weight_is_named(changes, line):
    given = COMMON | WEIGHTS | {"alpha_u": ALPHA_U} | changes
    with pytest.raises(ValueError) as error:  # noqa: PT011
        rawhfl_bound(f=[1, 0, 0], L_u=1, **given)
    assert str(error.value) == line
    with pytest.raises(ValueError) as error:  # noqa: PT011
        rawhfl_corollary_bound(f_0=1, f_K=0, **given)
    if set(changes) - {"alpha_b", "alpha_u"}:
        assert str(error.value) == line


def test_the_corollary_wants_weights_that_sum_to_1():
    for changes in ({"alpha_b": [3.0, 7.0]}, {"alpha_u": ALPHA_U * 2}):
        with pytest.raises(ValueError, match=r"^sum of alpha_. .*: the theorem holds for weights that sum to 1$"):
            rawhfl_corollary_bound(f_0=1, f_K=0, **COMMON | WEIGHTS | {"alpha_u": ALPHA_U} | changes)


SMALL = {"F_inf": 1.5, "beta": 2.0, "sigma2": 0.7, "E": 2, "K": 5, "L": 3, "alpha_u": [0.4, 0.6, 0.5, 0.5], **WEIGHTS}


def test_equation_27_by_hand():
    squares = (0.25 * 0.4) ** 2 + (0.25 * 0.6) ** 2 + 2 * (0.75 * 0.5) ** 2
    assert rawhfl_dominating_terms(eta=0.01, **SMALL) == pytest.approx(3 / (0.01 * 30) + 2 * 2 * 0.01 * 0.7 * squares)


def test_equation_27_is_what_remains_of_corollary_1_for_a_small_learning_rate():
    alpha_u = np.broadcast_to(SMALL["alpha_u"], (5, 2, 4))
    constants = COMMON | WEIGHTS | {"eta": 1e-9, "epsilon2_0": 0.2}
    terms = rawhfl_corollary_bound(f_0=2.5, f_K=1.0, alpha_u=alpha_u, **constants)
    rest = terms["bound"] - terms["loss"]
    small = SMALL | {"eta": 1e-9}
    assert rest == pytest.approx(rawhfl_dominating_terms(**small) - terms["loss"], rel=1e-3)
    assert terms["bound"] == pytest.approx(rawhfl_dominating_terms(**small), rel=1e-12)


def test_the_best_learning_rate_of_remark_3_has_the_least_terms():
    best = rawhfl_best_learning_rate(**SMALL)
    least = rawhfl_dominating_terms(eta=best, **SMALL)
    assert all(rawhfl_dominating_terms(eta=best * factor, **SMALL) > least for factor in (0.5, 0.99, 1.01, 2))
    # Both terms are the same there.
    assert least == pytest.approx(4 * 1.5 / (best * 30))


def test_with_equal_weights_the_rate_is_linear_in_the_clients():
    for cells, clients in ((1, 1), (2, 3), (4, 12)):
        equal = {
            "alpha_b": np.full(cells, 1 / cells),
            "cell": np.repeat(np.arange(cells), clients),
            "alpha_u": np.full(cells * clients, 1 / clients),
        }
        values = SMALL | equal
        best = rawhfl_best_learning_rate(**values)
        assert best == pytest.approx(sqrt(cells * clients / 30 * 1.5 / (2.0 * 0.7)))
        least = rawhfl_dominating_terms(eta=best, **values)
        assert least == pytest.approx(4 * sqrt(1.5 * 2.0 * 0.7 / (30 * cells * clients)))


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"F_inf": 0}, "F_inf from 0 to 0: the theorem holds for 0 < F_inf"),
        ({"K": 0}, "K = 0: allowed is an integer of 1 or more"),
        ({"sigma2": 0}, "the theorem holds for 0 < sigma2"),
        ({"alpha_u": [0, 0, 0, 0]}, "alpha_u = 0 for all clients"),
    ],
)
def test_what_has_no_best_learning_rate_is_named(changes, line):
    with pytest.raises(ValueError, match=line):
        rawhfl_best_learning_rate(**SMALL | changes)


@pytest.mark.parametrize("sigma2", [0.0, 0.5])
def test_what_is_measured_on_quadratics_is_below_the_bound_of_theorem_1(sigma2):
    shares, runs = [], 60
    for rng, world in worlds(60):
        E, L, K = (int(rng.integers(1, most)) for most in (5, 6, 5))
        eta = rawhfl_learning_rate_limit(beta=1.0, E=E, L=L) * rng.uniform(0.1, 0.999)
        each = K, E, len(world.cell)
        L_u, p_sc, g2 = rng.integers(1, L + 1, size=each), rng.choice([1.0, 0.6], size=each), np.zeros(each)
        model = np.broadcast_to(world.start, (runs, 3))
        f, slopes, visited, epsilon2_1 = [world.loss(model).mean()], [], [], 0.0
        for k in range(K):
            slopes.append(world.slope(model).mean())
            of_cells = np.repeat(model[:, np.newaxis], len(world.alpha_b), axis=1)
            for e in range(E):
                models, added = of_cells[:, world.cell], np.zeros((runs, *each[2:], 3))
                visited += [model, of_cells]
                for step in range(L):
                    drawn = np.sqrt(sigma2 / 3) * rng.normal(size=models.shape)
                    own = (world.gradients(models) + drawn) * (step < L_u[k, e])[:, np.newaxis]
                    g2[k, e] += (own**2).sum(-1).mean(0)
                    models, added = models - eta * own, added + own
                    visited.append(models)
                epsilon2_1 = max(epsilon2_1, world.divergence([model, of_cells], L_u[k, e])[1])  # eq. 20: of the sums
                arrived = rng.random((runs, *each[2:])) < p_sc[k, e]
                of_cells = of_cells - eta * (world.within @ (added * (arrived / p_sc[k, e])[..., np.newaxis]))  # eq. 15
            model = world.alpha_b @ of_cells
            f.append(world.loss(model).mean())
        epsilon2_0, at_all = world.divergence(visited)
        bound = rawhfl_bound(
            f=f, eta=eta, beta=1.0, sigma2=sigma2, epsilon2_0=epsilon2_0, epsilon2_1=max(epsilon2_1, at_all), L=L,
            alpha_b=world.alpha_b, cell=world.cell, alpha_u=np.broadcast_to(world.alpha_u.ravel(), each), L_u=L_u,
            p_sc=p_sc, g2=g2,
        )["bound"]  # fmt: skip
        shares.append(np.mean(slopes) / bound)
    assert 0.25 < max(shares) < 1
