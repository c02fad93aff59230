"""Ditto: its global model is FedAvg's, and each client's own is drawn to what it got."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from espalier.app.algorithms.ditto import PULL
from tests.app.algorithms.plain import Clients
from tests.app.assembling import config_of
from tests.app.runs import lines, run_app, same_weights, summary, weights

SMALL = {"num-clients": 4, "local-epochs": 1, "batches-per-epoch": 2, "global-rounds": 3, "alpha": 0.3}
TWO = {"num-edges": 2, "edge-rounds": 2}


@pytest.mark.parametrize("tiers", [{}, TWO], ids=["one tier", "two tiers"])
def test_the_global_model_is_fedavgs_to_the_bit(tiers, tmp_path):
    ditto = run_app(tmp_path / "ditto", algorithm="ditto", **SMALL, **tiers)
    plain = "h-fedavg" if tiers else "fedavg"
    assert same_weights(ditto, run_app(tmp_path / "plain", algorithm=plain, **SMALL, **tiers))


def test_own_models_are_those_of_plain_pytorch(tmp_path):
    settings = {"algorithm": "ditto", **SMALL}
    folder = run_app(tmp_path / "run", **settings)
    clients = Clients(config_of(**settings))
    members, own, x = range(4), [None] * 4, clients.start()
    for t in range(1, 4):
        models = {i: clients.train(i, x, t) for i in members}
        own = [clients.train(i, own[i] or x, t, pull=PULL, anchor=x) for i in members]
        x = clients.average(models, members)
    told = lines(folder, "global")[-1]["clients"]
    for i in members:
        assert told[str(i)]["loss"] == pytest.approx(loss(clients, i, x), abs=1e-6)
        assert told[str(i)]["personal-loss"] == pytest.approx(loss(clients, i, own[i]), abs=1e-6)
    assert abs(told["0"]["loss"] - told["0"]["personal-loss"]) > 1e-3
    mean = sum(loss(clients, i, own[i]) for i in members) / 4
    assert summary(folder)["personal"]["loss"]["mean"] == pytest.approx(mean, abs=1e-6)


def loss(clients, number, state):
    return float(cross_entropy(*clients.outputs(number, state)))


def test_clients_side_by_side_learn_what_each_learns_alone(tmp_path):
    every = {"algorithm": "ditto", **SMALL}
    alone, stacked = run_app(tmp_path / "alone", **every), run_app(tmp_path / "stacked", **every, stack=4)
    torch.testing.assert_close(weights(stacked), weights(alone), rtol=0, atol=1e-5)
    own = [[c["personal-loss"] for c in lines(f, "global")[-1]["clients"].values()] for f in (alone, stacked)]
    assert own[0] == pytest.approx(own[1], abs=1e-5)
