"""APFL: its global model is FedAvg's, and each client uses a mixture of it and a model of its own."""

import pytest
import torch
from flwr.app import ArrayRecord

from espalier.app.algorithms.apfl import MIXING
from espalier.app.config.parse import parse_config
from espalier.app.ground.errors import UserError
from espalier.app.wiring.task_of_run import build_task
from espalier.clients.memory import KEPT
from tests.app.algorithms.plain import Clients
from tests.app.algorithms.plain_personal import apfl, loss, mixed
from tests.app.algorithms.test_local import losses
from tests.app.algorithms.test_scaffold import kept_by
from tests.app.assembling import config_of, engine_of, federation_of
from tests.app.runs import kept_in, run_app, same_weights, weights

SMALL = {"num-clients": 4, "local-epochs": 1, "batches-per-epoch": 2, "global-rounds": 3, "alpha": 0.3}
TWO = {"num-edges": 2, "edge-rounds": 2}
WITH_MEMORY = {"train.momentum": 0.9, "train.weight-decay": 0.01}


@pytest.mark.parametrize("adapts", [False, True], ids=["fixed", "adaptive"])
@pytest.mark.parametrize("tiers", [{}, TWO], ids=["one tier", "two tiers"])
def test_models_are_those_of_plain_pytorch(tiers, adapts, tmp_path):
    settings = {"algorithm": "apfl", **SMALL, **tiers, "apfl.mixing": 0.4, "apfl.adapts": adapts}
    folder = run_app(tmp_path / "run", **settings)
    clients = Clients(config_of(**settings))
    edges = [[0, 1], [2, 3]] if tiers else [[0, 1, 2, 3]]
    w, own, shares = apfl(clients, edges, 3, tiers.get("edge-rounds", 1), 0.4, adapts=adapts)
    torch.testing.assert_close(weights(folder), w, rtol=0, atol=1e-6)
    kept = [records[KEPT] for records in kept_in(folder)]
    assert [float(one.pop(MIXING)) for one in kept] == pytest.approx(shares, abs=1e-6)
    torch.testing.assert_close(kept, own, rtol=0, atol=1e-6)
    expected = [loss(clients, i, mixed(v, w, a)) for i, (v, a) in enumerate(zip(own, shares, strict=True))]
    assert losses(folder, "personal-loss") == pytest.approx(expected, abs=1e-6)
    assert (len({0.4, *shares}) == 5) == adapts


@pytest.mark.parametrize("tiers", [WITH_MEMORY, TWO], ids=["one tier", "two tiers"])
def test_the_global_model_is_fedavgs_to_the_bit(tiers, tmp_path):
    own = run_app(tmp_path / "apfl", algorithm="apfl", **SMALL, **tiers)
    plain = "h-fedavg" if "num-edges" in tiers else "fedavg"
    assert same_weights(own, run_app(tmp_path / "plain", algorithm=plain, **SMALL, **tiers))


@pytest.mark.parametrize("settings", [WITH_MEMORY, {"optimizer": "adam", "learning-rate": 0.01}], ids=["sgd", "adam"])
def test_a_share_of_1_is_local_training_and_one_of_0_the_global_model(settings, tmp_path):
    every = {**SMALL, **settings, "global-rounds": 2}
    alone = run_app(tmp_path / "local", algorithm="local", **every)
    all_own = run_app(tmp_path / "one", algorithm="apfl", **every, **{"apfl.mixing": 1.0})
    assert losses(all_own, "personal-loss") == pytest.approx(losses(alone), abs=1e-6)
    none = run_app(tmp_path / "none", algorithm="apfl", **every, **{"apfl.mixing": 0.0})
    assert losses(none, "personal-loss") == losses(none)
    assert same_weights(none, all_own)


@pytest.mark.parametrize("mixing", [0.0, 0.5])
def test_the_own_model_moves_unless_its_share_is_0(mixing):
    config = config_of(algorithm="apfl", **SMALL, engine="in-process", apfl_mixing=mixing)
    engine = engine_of(config)
    start = build_task(config).new_model().state_dict()
    federation_of(config, engine.grid).hierarchical.start(engine.grid, ArrayRecord(start), num_rounds=2)
    for node_id in engine.grid.get_node_ids():
        own = kept_by(engine.grid, node_id)
        assert float(own[MIXING]) == mixing
        assert all(torch.equal(own[name], tensor) for name, tensor in start.items()) == (mixing == 0)


@pytest.mark.parametrize("settings", [{"apfl.adapts": True}, WITH_MEMORY], ids=["adaptive", "momentum"])
def test_clients_side_by_side_learn_what_each_learns_alone(settings, tmp_path):
    every = {"algorithm": "apfl", **SMALL, **settings}
    alone, stacked = run_app(tmp_path / "alone", **every), run_app(tmp_path / "stacked", **every, stack=4)
    torch.testing.assert_close(weights(stacked), weights(alone), rtol=0, atol=1e-5)
    assert losses(stacked, "personal-loss") == pytest.approx(losses(alone, "personal-loss"), abs=1e-5)


def test_shares_beyond_1_are_refused_by_name():
    with pytest.raises(UserError, match=r"apfl\.mixing = 1\.5"):
        parse_config({"apfl.mixing": 1.5})
