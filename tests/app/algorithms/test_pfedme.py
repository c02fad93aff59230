"""pFedMe: own models are drawn to those that are sent, and these follow them."""

import pytest
import torch

from espalier.app.algorithms.pfedme import Towards
from espalier.app.ground.errors import UserError
from espalier.clients.memory import KEPT
from espalier.strategies import Gathered
from tests.app.algorithms.plain import Clients
from tests.app.algorithms.plain_personal import loss, pfedme
from tests.app.algorithms.test_local import losses
from tests.app.assembling import config_of, engine_of, federation_of
from tests.app.runs import kept_in, run_app, weights

SMALL = {"num-clients": 4, "local-epochs": 1, "batches-per-epoch": 2, "global-rounds": 3, "alpha": 0.3}
SMALL |= {"learning-rate": 0.05, "pfedme.pull": 4.0, "pfedme.rate": 0.1, "pfedme.steps": 3}
TWO = {"num-edges": 2, "edge-rounds": 2}


@pytest.mark.parametrize("beta", [1.0, 0.5])
@pytest.mark.parametrize("tiers", [{}, TWO], ids=["one tier", "two tiers"])
def test_models_are_those_of_plain_pytorch(tiers, beta, tmp_path):
    settings = {"algorithm": "pfedme", **SMALL, **tiers, "pfedme.beta": beta}
    folder = run_app(tmp_path / "run", **settings)
    clients = Clients(config_of(**settings))
    edges = [[0, 1], [2, 3]] if tiers else [[0, 1, 2, 3]]
    how = {"pull": 4.0, "rate": 0.1, "steps": 3, "beta": beta}
    x, own = pfedme(clients, edges, 3, tiers.get("edge-rounds", 1), **how)
    torch.testing.assert_close(weights(folder), x, rtol=0, atol=1e-6)
    torch.testing.assert_close([kept[KEPT] for kept in kept_in(folder)], own, rtol=0, atol=1e-6)
    expected = [loss(clients, i, theta) for i, theta in enumerate(own)]
    assert losses(folder, "personal-loss") == pytest.approx(expected, abs=1e-6)
    assert abs(losses(folder)[0] - expected[0]) > 1e-3


def test_beta_says_how_far_an_edge_goes():
    x, models = {"w": torch.tensor([1.0, 2.0])}, {7: {"w": torch.tensor([2.0, 0.0])}}
    gathered = Gathered(x, models, {7: {}}, {7: 1.0}, 1)
    assert Towards({"pfedme.beta": 1.0}).averaged(gathered) is models
    assert Towards({"pfedme.beta": 0.25}).averaged(gathered)[7]["w"].tolist() == [1.25, 1.5]


def test_clients_side_by_side_learn_what_each_learns_alone(tmp_path):
    every = {"algorithm": "pfedme", **SMALL, "train.momentum": 0.5, "train.weight-decay": 0.01}
    alone, stacked = run_app(tmp_path / "alone", **every), run_app(tmp_path / "stacked", **every, stack=4)
    torch.testing.assert_close(weights(stacked), weights(alone), rtol=0, atol=1e-5)
    assert losses(stacked, "personal-loss") == pytest.approx(losses(alone, "personal-loss"), abs=1e-5)


def test_a_rate_that_goes_beyond_the_own_model_is_refused_by_name():
    config = config_of(algorithm="pfedme", **SMALL | {"pfedme.rate": 0.25})
    with pytest.raises(UserError, match=r"pfedme\.rate = 0\.25: allowed is less than 1 / pfedme\.pull = 0\.25"):
        federation_of(config, engine_of(config).grid)
