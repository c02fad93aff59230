"""SCAFFOLD: equal to plain PyTorch, whole, in two tiers and cut; its control variates add up."""

import pytest
import torch
from flwr.app import ArrayRecord

from espalier.app.config.parse import parse_config
from espalier.app.engines.in_process import InProcess
from espalier.app.wiring.task_of_run import build_task
from espalier.clients.memory import KEPT, kept
from tests.app.algorithms.plain import Clients, scaffold
from tests.app.assembling import config_of, federation_of
from tests.app.runs import run_app, summary, weights

SMALL = {"num-clients": 4, "local-epochs": 1, "batches-per-epoch": 2, "global-rounds": 3, "alpha": 0.3}
TWO = {"num-edges": 2, "edge-rounds": 2}
WHOLE, CUT = "scaffold", "hsfl-scaffold"


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("tiers", [{}, TWO], ids=["one tier", "two tiers"])
def test_whole_models_are_those_of_plain_pytorch(tiers, momentum, tmp_path):
    settings = {"algorithm": WHOLE, **SMALL, **tiers, "train.momentum": momentum}
    folder = run_app(tmp_path / "run", **settings, report_evaluate_every=0)
    clients = Clients(config_of(**settings))
    edges = [[0, 1], [2, 3]] if tiers else [[0, 1, 2, 3]]
    expected, _, _ = scaffold(clients, edges, 3, tiers.get("edge-rounds", 1))
    torch.testing.assert_close(weights(folder), expected, rtol=0, atol=1e-6)
    assert summary(folder)["replies_left_out"] == 0


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("cut", [1, 2])
@pytest.mark.parametrize("tiers", [{}, TWO], ids=["SFL-V1", "HSFL"])
def test_cut_models_are_those_of_whole_ones(tiers, cut, momentum, tmp_path):
    settings = {**SMALL, **tiers, "train.momentum": momentum, "report_evaluate_every": 0, "fine-tune.steps": 0}
    whole = run_app(tmp_path / "whole", algorithm=WHOLE, **{k: v for k, v in settings.items() if "tune" not in k})
    halves = run_app(tmp_path / "cut", algorithm=CUT, cut_layer=cut, **settings)
    torch.testing.assert_close(weights(halves), weights(whole), rtol=0, atol=1e-6)
    assert summary(halves)["replies_left_out"] == 0


@pytest.mark.parametrize(
    "settings",
    [{"split.execution": "messages"}, {"tail-layer": "head"}, {"tail-layer": "head", "split.execution": "messages"}],
    ids=str,
)
def test_however_mini_batches_travel_the_bits_are_the_same(settings, tmp_path):
    every = {"algorithm": CUT, **SMALL, "report_evaluate_every": 0, "fine-tune.steps": 0}
    fused = run_app(tmp_path / "fused", **every)
    other = run_app(tmp_path / "other", **every, **settings)
    torch.testing.assert_close(weights(other), weights(fused), rtol=0, atol=1e-6 if "tail-layer" in settings else 0)


def test_control_variates_of_an_edges_clients_sum_to_the_edges():
    config = parse_config({"algorithm": WHOLE, **SMALL, "engine": "in-process"})
    engine = InProcess.open(4, config.as_dict(), 0)
    federation = federation_of(config, engine.grid)
    model = ArrayRecord(build_task(config).new_model().state_dict())
    federation.hierarchical.start(engine.grid, model, num_rounds=3)
    (edge,) = federation.hierarchical.edges.values()
    control = edge_half_of(edge).control
    own = [kept_by(engine.grid, node_id) for node_id in engine.grid.get_node_ids()]
    assert max(float(c.abs().max()) for c in control.values()) > 0.01
    for name, values in control.items():
        torch.testing.assert_close(sum(c[name] for c in own) / 4, values, rtol=0, atol=1e-6)


def test_one_client_trains_by_plain_sgd(tmp_path):
    one = {**SMALL, "num-clients": 1, "report_evaluate_every": 0}
    assert_close = torch.testing.assert_close
    ours, plain = (run_app(tmp_path / name, algorithm=name, **one) for name in (WHOLE, "fedavg"))
    assert_close(weights(ours), weights(plain), rtol=0, atol=1e-6)


def test_clients_side_by_side_learn_what_each_learns_alone(tmp_path):
    every = {"algorithm": WHOLE, **SMALL, **TWO, "report_evaluate_every": 0}
    alone, stacked = run_app(tmp_path / "alone", **every), run_app(tmp_path / "stacked", **every, stack=4)
    torch.testing.assert_close(weights(stacked), weights(alone), rtol=0, atol=1e-5)


def test_cut_clients_beside_a_stack_learn_what_each_learns_alone(tmp_path):
    every = {"algorithm": CUT, **SMALL, **TWO, "report_evaluate_every": 0, "fine-tune.steps": 0}
    alone, stacked = run_app(tmp_path / "alone", **every), run_app(tmp_path / "stacked", **every, stack=4)
    torch.testing.assert_close(weights(stacked), weights(alone), rtol=0, atol=1e-5)


def edge_half_of(edge):
    while not hasattr(edge, "half"):
        edge = edge.edge
    return edge.half


def kept_by(grid, node_id, record=KEPT):
    class Context:
        state = grid._nodes[node_id].state

    return kept(Context, record)
