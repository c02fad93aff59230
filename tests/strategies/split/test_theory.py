"""The papers' formulas against values worked out by hand, and against what is measured."""

import re
from collections import Counter
from math import ceil, log2, sqrt

import numpy as np
import pytest

from espalier.clients.messages.split_names import ACTIVATIONS, CLIENT_BLOCK, CUT_GRADIENT, INDICES
from espalier.strategies import Observer
from espalier.strategies.split import SplitFedV1
from espalier.strategies.split.theory import (
    phi_hfl,
    phi_local,
    phi_phsfl,
    phsfl_bound,
    phsfl_learning_rate_limit,
    sfl_v1_bound,
    sfl_v1_learning_rate_limit,
)
from tests.strategies.quadratics import worlds
from tests.strategies.split.federation import Federation


def test_payloads_of_the_papers_setting_by_hand():
    # cnn cut after its first block: Z_c = 64 * 8 * 8 = 4096, Z_0 = 1792, Z = 209546; 500 samples: 9 + 1 bits an index.
    local = phi_local(n_batches=5, N=32, Z_c=4096, D_u=500)
    assert local == 5 * (2 * 32 * 4096 * 33 + 32 * 10) == 43_255_360
    assert phi_phsfl(kappa_0=5, n_batches=5, N=32, Z_c=4096, Z_0=1792, D_u=500) == 5 * local + 2 * 1792 * 33
    assert phi_hfl(Z=209_546) == 13_830_036


class Counting(Observer):
    """Counts the values of each kind that travel between clients and edges."""

    def __init__(self):
        self.values = Counter()

    def on_message(self, tier, edge, direction, message):
        for name, record in message.content.array_records.items() if tier == "edge" else ():
            count = sum(array.numpy().size for array in record.values())
            self.values[name, message.metadata.message_type.startswith("train")] += count


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_what_is_measured_never_exceeds_the_closed_form(cut):
    federation = Federation(sizes=(20, 33, 14), local_epochs=2, batches_per_epoch=3)
    counting = Counting()
    federation.run(federation.split(SplitFedV1, lambda n: cut), rounds=1, observers=[counting])
    values = {name: count for (name, training), count in counting.values.items() if training}
    block = federation.make_model()[:cut].state_dict()
    z_0, z_c = sum(t.numel() for t in block.values()), (256, 96, 16)[cut - 1]
    bound = sum(phi_phsfl(kappa_0=2, n_batches=3, N=8, Z_c=z_c, Z_0=z_0, D_u=d) for d in federation.sizes)
    floats = values[ACTIVATIONS] + values[CUT_GRADIENT] + values[CLIENT_BLOCK]
    indices = max(ceil(log2(d)) + 1 for d in federation.sizes) * values[INDICES]
    assert 0.8 * bound < floats * 33 + indices <= bound


def test_theorem_1_by_hand():
    values = {"beta": 2.0, "kappa_0": 3, "kappa_1": 2, "eta": 0.01}
    assert phsfl_learning_rate_limit(beta=2.0, kappa_0=3, kappa_1=2) == pytest.approx(1 / (24 * sqrt(5)))
    terms = phsfl_bound(
        f_0=2.5,
        f_T=0.5,
        T=400,
        sigma2=0.7,
        epsilon2_0=0.2,
        epsilon2_1=0.3,
        alpha_b=[0.25, 0.75],
        alpha_u=[[0.5, 0.5], [0.2, 0.8]],
        **values,
    )
    # beta eta = 0.02; sum_b alpha_b sum_u alpha_u^2 = 0.25*0.5 + 0.75*0.68 = 0.635; with alpha_b^2: 0.41375
    assert terms["loss"] == pytest.approx(1.0)
    assert terms["variance"] == pytest.approx(0.02 * 0.7 * 0.41375)
    gamma_0 = 4 * 4e-4 * 9 * 0.365
    gamma_1 = 80 * 4 * 1.6e-7 * 81 * 0.365 + 4 * 2 * 3 * 4e-4 * (0.635 - 0.41375)
    assert terms["gamma"] == pytest.approx((gamma_0 + gamma_1) * 0.7)
    assert terms["user_es"] == pytest.approx(12 * 4e-4 * 9 * (1 + 20 * 9 * 4 * 4e-4) * 0.2)
    assert terms["es_cs"] == pytest.approx(20 * 4e-4 * 4 * 9 * 0.3)
    assert terms["bound"] == pytest.approx(sum(v for k, v in terms.items() if k != "bound"))
    with pytest.raises(ValueError, match=r"eta = 0\.1: the theorem holds for 0 < eta < 0\.0186"):
        phsfl_bound(
            f_0=1, f_T=0, T=1, sigma2=1, epsilon2_0=0, epsilon2_1=0, alpha_b=[1], alpha_u=[[1]], **values | {"eta": 0.1}
        )


@pytest.mark.parametrize(
    ("weights", "given"),
    [
        ({"alpha_b": [1.0, 1.0]}, "alpha_b from 1, with the sum 2"),
        ({"alpha_b": [1.25, -0.25]}, "alpha_b from -0.25, with the sum 1"),
        ({"alpha_u": [[0.5, 0.5], [0.2, 0.7]]}, "alpha_u of an edge server from 0.2, with the sum 0.9"),
        ({"alpha_u": [[0.5, 0.5], []]}, "alpha_u of an edge server from 0, with the sum 0"),
        ({"alpha_b": [0.5, float("nan")]}, "alpha_b from 0.5, with the sum nan"),
    ],
)
def test_theorem_1_wants_weights_that_sum_to_1(weights, given):
    values = {"alpha_b": [0.25, 0.75], "alpha_u": [[0.5, 0.5], [1.0, 0.0]]} | weights
    with pytest.raises(ValueError, match=f"^{re.escape(given)}: the theorem holds for weights of 0 or more that sum"):
        phsfl_bound(
            f_0=1, f_T=0, T=10, eta=0.01, beta=1, sigma2=2, epsilon2_0=0, epsilon2_1=0, kappa_0=2, kappa_1=1, **values
        )


def test_one_edge_with_one_client_is_plain_sgd():
    terms = phsfl_bound(
        f_0=1, f_T=0, T=10, eta=0.01, beta=1, sigma2=2, epsilon2_0=0, epsilon2_1=0, kappa_0=2, kappa_1=1,
        alpha_b=[1.0], alpha_u=[[1.0]],
    )  # fmt: skip
    assert terms["bound"] == pytest.approx(2 / (0.01 * 10) + 0.01 * 2)


def test_proposition_1_by_hand():
    assert sfl_v1_learning_rate_limit(S=2.0, tau=5, alpha=[0.5, 0.5]) == pytest.approx(1 / 160)
    assert sfl_v1_learning_rate_limit(S=2.0, tau=5, alpha=[1.0, 0.0, 0.0]) == pytest.approx(1 / 240)
    bound = sfl_v1_bound(
        f_0=3.0, f_star=1.0, eta=[0.005, 0.001], S=2.0, tau=5, alpha=[0.25, 0.75], sigma2=[0.1, 0.2], epsilon2=0.4
    )
    noise = 0.0625 * 0.5 + 0.5625 * 0.6
    assert bound == pytest.approx(4 * 2 / 10 + 16 * 2 * 2 * 5 / 2 * noise * 26e-6)
    with pytest.raises(ValueError, match=r"eta up to 0\.1"):
        sfl_v1_bound(f_0=1, f_star=0, eta=[0.1], S=2.0, tau=5, alpha=[1.0], sigma2=[0.1], epsilon2=0)


def noise(rng, sigma2, shape):
    return np.sqrt(sigma2 / shape[-1]) * rng.normal(size=shape)


@pytest.mark.parametrize("sigma2", [0.0, 0.5])
def test_what_is_measured_on_quadratics_is_below_the_bound_of_theorem_1(sigma2):
    shares, runs = [], 20 if sigma2 else 1
    for rng, world in worlds(60):
        kappa_0, kappa_1, T = (int(rng.integers(1, most)) for most in (6, 4, 6))
        T *= kappa_0 * kappa_1
        eta = phsfl_learning_rate_limit(beta=1.0, kappa_0=kappa_0, kappa_1=kappa_1) * rng.uniform(0.1, 0.999)
        models = np.broadcast_to(world.start, (runs, len(world.cell), 3))
        slopes, visited = [], []
        for t in range(1, T + 1):
            of_cells = world.within @ models
            visited += [models, of_cells, of_all := world.alpha_b @ of_cells]
            slopes.append(world.slope(of_all).mean())
            models = models - eta * (world.gradients(models) + noise(rng, sigma2, models.shape))
            if t % kappa_0 == 0:
                models = (world.within @ models)[:, world.cell]
            if t % (kappa_0 * kappa_1) == 0:
                models = np.broadcast_to((world.weights @ models)[:, np.newaxis], models.shape)
        epsilon2_0, epsilon2_1 = world.divergence(visited)
        bound = phsfl_bound(
            f_0=world.loss(world.start), f_T=world.loss(models[:, 0]).mean(), T=T, eta=eta, beta=1.0, sigma2=sigma2,
            epsilon2_0=epsilon2_0, epsilon2_1=epsilon2_1, kappa_0=kappa_0, kappa_1=kappa_1, alpha_b=world.alpha_b,
            alpha_u=world.alpha_u,
        )["bound"]  # fmt: skip
        shares.append(np.mean(slopes) / bound)
    assert 0.25 < max(shares) < 1


@pytest.mark.parametrize("sigma2", [0.0, 0.5])
def test_what_is_measured_on_quadratics_is_below_the_bound_of_proposition_1(sigma2):
    shares, runs = [], 20 if sigma2 else 1
    for rng, world in worlds(60):
        tau, T = int(rng.integers(1, 6)), int(rng.integers(1, 8))
        eta = sfl_v1_learning_rate_limit(S=1.0, tau=tau, alpha=world.weights) * rng.uniform(0.1, 1)
        model = np.broadcast_to(world.start, (runs, 3))
        slopes, divergence = [], 0.0
        for _ in range(T):
            slopes.append(world.slope(model).mean())
            models = np.broadcast_to(model[:, np.newaxis], (runs, len(world.cell), 3))
            for _ in range(tau):
                own = world.gradients(models.reshape(-1, 1, 3))  # everybody's, at each client's model
                apart = ((own - (world.weights @ own)[:, np.newaxis]) ** 2).sum(-1)
                divergence = max(divergence, float(apart.max()))
                models = models - eta * (world.gradients(models) + noise(rng, sigma2, models.shape))
            model = world.weights @ models
        matrix = np.einsum("u,uij->ij", world.weights, world.matrices)
        best = np.linalg.solve(matrix, np.einsum("u,uij,uj->i", world.weights, world.matrices, world.centres))
        bound = sfl_v1_bound(
            f_0=world.loss(world.start), f_star=world.loss(best), eta=[eta] * T, S=1.0, tau=tau, alpha=world.weights,
            sigma2=[sigma2] * len(world.cell), epsilon2=divergence,
        )  # fmt: skip
        shares.append(eta * np.mean(slopes) / bound)
    assert 0.05 < max(shares) < 1
