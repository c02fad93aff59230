"""FedDyn: equal to plain PyTorch, whole, in two tiers and cut; h is the mean of all clients' q."""

from dataclasses import replace

import pytest
import torch
from flwr.app import ArrayRecord

from espalier.app.algorithms.feddyn import FEDDYN, FEDDYN_CLIENT, ServerDynamics, feddyn_round
from espalier.app.algorithms.strategies import edge_of_halves
from espalier.app.config.parse import parse_config
from espalier.app.config.unused import unused_keys
from espalier.app.ground.errors import UserError
from espalier.app.wiring.task_of_run import build_task
from espalier.clients.shared.local_round import Begun, Learned
from tests.app.algorithms.plain import Clients, feddyn
from tests.app.algorithms.test_scaffold import edge_half_of, kept_by
from tests.app.assembling import config_of, engine_of, federation_of
from tests.app.runs import run_app, same_weights, summary, weights

SMALL = {"num-clients": 4, "local-epochs": 1, "batches-per-epoch": 2, "global-rounds": 3, "alpha": 0.3}
TWO = {"num-edges": 2, "edge-rounds": 2}
UNTESTED = {"report_evaluate_every": 0}
WHOLE, CUT = "feddyn", "hsfl-feddyn"


class Without(ServerDynamics):
    """An edge that holds h at 0."""

    def averaged(self, gathered):
        return gathered.models


WITHOUT_H = replace(FEDDYN, make_edge=edge_of_halves(FEDDYN_CLIENT, lambda site: Without(site.own.alpha)))


@pytest.mark.parametrize("weighting", ["examples", "equal"])
@pytest.mark.parametrize("tiers", [{}, TWO], ids=["one tier", "two tiers"])
def test_whole_models_are_those_of_plain_pytorch(tiers, weighting, tmp_path):
    settings = {"algorithm": WHOLE, **SMALL, **tiers, "feddyn.alpha": 0.3, "train.weighting": weighting}
    folder = run_app(tmp_path / "run", **settings, **UNTESTED)
    clients = Clients(config_of(**settings))
    edges = [[0, 1], [2, 3]] if tiers else [[0, 1, 2, 3]]
    expected = feddyn(clients, edges, 3, tiers.get("edge-rounds", 1), alpha=0.3)
    torch.testing.assert_close(weights(folder), expected, rtol=0, atol=1e-6)
    assert summary(folder)["replies_left_out"] == 0


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("settings", [{}, TWO, {"split.execution": "messages"}], ids=["SFL-V1", "HSFL", "messages"])
def test_cut_models_are_those_of_whole_ones(settings, momentum, tmp_path):
    of_both = {key: value for key, value in settings.items() if "split" not in key}
    every = {**SMALL, **of_both, "train.momentum": momentum, **UNTESTED}
    whole = run_app(tmp_path / "whole", algorithm=WHOLE, **every)
    cut = run_app(tmp_path / "cut", algorithm=CUT, **{**every, **settings}, cut_layer=1, fine_tune_steps=0)
    torch.testing.assert_close(weights(cut), weights(whole), rtol=0, atol=1e-6)
    assert summary(cut)["replies_left_out"] == 0


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_h_is_the_mean_of_the_q_of_all_clients(participation):
    config = config_of(algorithm=WHOLE, **SMALL, participation=participation, engine="in-process")
    engine = engine_of(config)
    federation = federation_of(config, engine.grid)
    model = ArrayRecord(build_task(config).new_model().state_dict())
    federation.hierarchical.start(engine.grid, model, num_rounds=3)
    (edge,) = federation.hierarchical.edges.values()
    own = [kept_by(engine.grid, node_id) for node_id in engine.grid.get_node_ids()]
    h = edge_half_of(edge).h
    assert max(float(values.abs().max()) for values in h.values()) > 1e-3
    for name, values in h.items():
        torch.testing.assert_close(sum(q[name] for q in own if q) / 4, values, rtol=0, atol=1e-7)


def test_with_h_at_nothing_a_vanishing_alpha_gives_fedavg_and_with_h_twice_its_step(tmp_path):
    one = {**SMALL, **UNTESTED, "train.weighting": "equal", "global-rounds": 1}
    fedavg = weights(run_app(tmp_path / "fedavg", algorithm="fedavg", **one))
    one["feddyn.alpha"] = 1e-7
    without = run_app(tmp_path / "without", algorithm="tests.app.algorithms.test_feddyn:WITHOUT_H", **one)
    torch.testing.assert_close(weights(without), fedavg, rtol=0, atol=1e-6)
    start = Clients(config_of(algorithm=WHOLE, **SMALL)).start()
    twice = {name: 2 * fedavg[name] - start[name] for name in start}
    torch.testing.assert_close(weights(run_app(tmp_path / "with", algorithm=WHOLE, **one)), twice, rtol=0, atol=1e-6)


def test_a_client_is_drawn_to_what_it_got_and_keeps_what_it_was_drawn_by():
    x, alpha = {"w": torch.tensor([1.0, 2.0])}, {"feddyn-alpha": torch.tensor(0.5)}
    conversation = feddyn_round(Begun(x, x, alpha, {"w": torch.tensor([0.1, 0.2])}))
    correction = next(conversation).correction
    assert (correction.pull, correction.anchor) == (0.5, x)
    assert correction.drift["w"].tolist() == pytest.approx([-0.1, -0.2])
    with pytest.raises(StopIteration) as over:
        conversation.send(Learned({"w": torch.tensor([2.0, 2.0])}, path=0.1, steps=1))
    assert over.value.value.kept["w"].tolist() == pytest.approx([-0.4, 0.2])
    assert over.value.value.told == {}


@pytest.mark.parametrize("algorithm", [WHOLE, CUT])
def test_clients_side_by_side_learn_what_each_learns_alone(algorithm, tmp_path):
    every = {"algorithm": algorithm, **SMALL, **TWO, **UNTESTED}
    alone, stacked = run_app(tmp_path / "alone", **every), run_app(tmp_path / "stacked", **every, stack=4)
    torch.testing.assert_close(weights(stacked), weights(alone), rtol=0, atol=1e-5)


def test_alpha_is_of_both_and_refused_by_name(tmp_path):
    for algorithm in (WHOLE, CUT):
        few = {"algorithm": algorithm, **SMALL, **UNTESTED, "global-rounds": 1}
        usual, strong = (run_app(tmp_path / f"{algorithm}{a}", **few, **{"feddyn.alpha": a}) for a in (0.1, 1.0))
        assert not same_weights(usual, strong)
    with pytest.raises(UserError, match=r"feddyn\.alpha = 0"):
        parse_config({"feddyn.alpha": 0.0})
    assert config_of(algorithm=WHOLE, feddyn_alpha=0.2).of_algorithm.alpha == 0.2
    assert config_of(algorithm="fedavg").of_algorithm is None
    unused = unused_keys(config_of(algorithm="fedavg", feddyn_alpha=0.2, num_edges=0))
    assert unused == {"feddyn.alpha": "it is for algorithm = 'feddyn' and 'hsfl-feddyn'"}
