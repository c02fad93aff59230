"""Local training alone: each client's model is its own, and nothing is sent."""

import pytest
import torch

from espalier.app.command_line import main
from espalier.clients.memory import OWN_WEIGHTS
from tests.app.algorithms.plain import Clients
from tests.app.algorithms.plain_personal import local, loss
from tests.app.assembling import config_of
from tests.app.runs import kept_in, lines, run_app, summary, weights

SMALL = {"num-clients": 4, "local-epochs": 1, "batches-per-epoch": 2, "global-rounds": 3, "alpha": 0.3}
TWO = {"num-edges": 2, "edge-rounds": 2}


def losses(folder, name="loss"):
    return [client[name] for client in lines(folder, "global")[-1]["clients"].values()]


@pytest.mark.parametrize("tiers", [{}, TWO], ids=["one tier", "two tiers"])
def test_models_are_those_of_plain_pytorch(tiers, tmp_path):
    settings = {"algorithm": "local", **SMALL, **tiers}
    folder = run_app(tmp_path / "run", **settings)
    clients = Clients(config_of(**settings))
    start = clients.start()
    own = local(clients, 3 * tiers.get("edge-rounds", 1))
    torch.testing.assert_close([kept[OWN_WEIGHTS] for kept in kept_in(folder)], own, rtol=0, atol=1e-6)
    assert losses(folder) == pytest.approx([loss(clients, i, state) for i, state in enumerate(own)], abs=1e-6)
    assert max(losses(folder)) - min(losses(folder)) > 1e-2
    # The global model is that which all began with.
    torch.testing.assert_close(weights(folder), start, rtol=0, atol=1e-6)


@pytest.mark.parametrize("training", [{}, {"train.momentum": 0.9, "train.weight-decay": 0.01}], ids=str)
def test_own_models_of_ditto_that_nothing_draws_train_alone(training, tmp_path, monkeypatch):
    monkeypatch.setattr("espalier.app.algorithms.ditto.PULL", 0.0)
    ditto = run_app(tmp_path / "ditto", algorithm="ditto", **SMALL, **TWO, **training)
    alone = run_app(tmp_path / "local", algorithm="local", **SMALL, **TWO, **training)
    assert losses(ditto, "personal-loss") == losses(alone)
    assert losses(ditto) != losses(alone)


def test_no_weight_is_in_a_message(tmp_path):
    folder = run_app(tmp_path / "run", algorithm="local", **SMALL)
    assert [summary(folder)["bytes_by_kind"]["cloud"][way].get("model", 0) for way in ("uplink", "downlink")] == [0, 0]


def test_clients_side_by_side_learn_what_each_learns_alone(tmp_path):
    every = {"algorithm": "local", **SMALL}
    alone, stacked = run_app(tmp_path / "alone", **every), run_app(tmp_path / "stacked", **every, stack=4)
    assert losses(stacked) == pytest.approx(losses(alone), abs=1e-5)


@pytest.mark.parametrize("strategy", ["Krum", "Bulyan(num_malicious_nodes=0)"])
def test_a_strategy_that_compares_models_is_refused(strategy, capsys):
    assert main(["algorithm=local", f'edge-strategy="{strategy}"']) == 2
    said = "allowed is one that compares no models: local sends none"
    assert capsys.readouterr().err == f"error: edge-strategy = {strategy!r}: {said}\n"
