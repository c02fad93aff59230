"""Ditto: its global model is FedAvg's, and each client's own is drawn to what it got."""

import pytest
import torch

from espalier.app.algorithms.ditto import PULL
from espalier.clients.memory import KEPT
from tests.app.algorithms.plain import Clients
from tests.app.algorithms.plain_personal import ditto, loss
from tests.app.algorithms.test_local import losses
from tests.app.assembling import config_of
from tests.app.runs import kept_in, run_app, same_weights, summary, weights

SMALL = {"num-clients": 4, "local-epochs": 1, "batches-per-epoch": 2, "global-rounds": 3, "alpha": 0.3}
TWO = {"num-edges": 2, "edge-rounds": 2}


@pytest.mark.parametrize("tiers", [{}, TWO], ids=["one tier", "two tiers"])
def test_the_global_model_is_fedavgs_to_the_bit(tiers, tmp_path):
    ditto = run_app(tmp_path / "ditto", algorithm="ditto", **SMALL, **tiers)
    plain = "h-fedavg" if tiers else "fedavg"
    assert same_weights(ditto, run_app(tmp_path / "plain", algorithm=plain, **SMALL, **tiers))


@pytest.mark.parametrize("tiers", [{}, TWO], ids=["one tier", "two tiers"])
def test_own_models_are_those_of_plain_pytorch(tiers, tmp_path):
    settings = {"algorithm": "ditto", **SMALL, **tiers}
    folder = run_app(tmp_path / "run", **settings)
    clients = Clients(config_of(**settings))
    edges = [[0, 1], [2, 3]] if tiers else [[0, 1, 2, 3]]
    x, own = ditto(clients, edges, 3, tiers.get("edge-rounds", 1), PULL)
    torch.testing.assert_close(weights(folder), x, rtol=0, atol=1e-6)
    torch.testing.assert_close([kept[KEPT] for kept in kept_in(folder)], own, rtol=0, atol=1e-6)
    expected = [loss(clients, i, state) for i, state in enumerate(own)]
    assert losses(folder) == pytest.approx([loss(clients, i, x) for i in range(4)], abs=1e-6)
    assert losses(folder, "personal-loss") == pytest.approx(expected, abs=1e-6)
    assert abs(losses(folder)[0] - expected[0]) > 1e-3
    assert summary(folder)["personal"]["loss"]["mean"] == pytest.approx(sum(expected) / 4, abs=1e-6)


def test_clients_side_by_side_learn_what_each_learns_alone(tmp_path):
    every = {"algorithm": "ditto", **SMALL}
    alone, stacked = run_app(tmp_path / "alone", **every), run_app(tmp_path / "stacked", **every, stack=4)
    torch.testing.assert_close(weights(stacked), weights(alone), rtol=0, atol=1e-5)
    assert losses(stacked, "personal-loss") == pytest.approx(losses(alone, "personal-loss"), abs=1e-5)
