"""FedProx of cut models: clients' blocks and server's blocks are drawn to where they began, as a whole model is."""

import pytest
import torch
from flwr.app import ArrayRecord

from espalier.app.wiring.clients import client_task
from espalier.app.wiring.task_of_run import build_task
from espalier.clients.client_app import make_client_app
from tests.app.algorithms.plain import Clients, two_tiers
from tests.app.assembling import config_of, engine_of, federation_of
from tests.app.runs import run_app, same_weights, summary, weights

SMALL = {"num-clients": 4, "local-epochs": 1, "batches-per-epoch": 4, "global-rounds": 3, "alpha": 0.3}
TWO = {"num-edges": 2, "edge-rounds": 2}
CUT = {"report_evaluate_every": 0, "fine-tune.steps": 0, "cut-layer": 1}
PROXIMAL = {"edge-strategy": "FedProx(proximal_mu=1.0)"}
UNDER_CLOUD = {"cloud-strategy": "FedProx(proximal_mu=1.0)"}


def plain(settings, edges, edge_rounds):
    """FedProx in plain PyTorch (arXiv:1812.06127, Alg. 2): ``g + mu * (w - x)``."""
    clients = Clients(config_of(**settings))

    def round_of_edge(j, members, x, server_round):
        models = {i: clients.train(i, x, server_round, pull=1.0, anchor=x) for i in members}
        return clients.average(models, members)

    return two_tiers(clients, edges, round_of_edge, 3, edge_rounds)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("strategy", [PROXIMAL, UNDER_CLOUD], ids=["edge-strategy", "cloud-strategy"])
def test_hsfl_is_plain_fedprox(strategy, momentum, tmp_path):
    settings = {"algorithm": "hsfl", **SMALL, **TWO, **strategy, "train.momentum": momentum}
    folder = run_app(tmp_path / "cut", **settings, **CUT)
    torch.testing.assert_close(weights(folder), plain(settings, [[0, 1], [2, 3]], 2), rtol=0, atol=1e-6)
    assert summary(folder)["replies_left_out"] == 0


@pytest.mark.parametrize("settings", [{}, {"tail-layer": "head"}, {"split.execution": "messages"}], ids=str)
def test_sfl_v1_is_plain_fedprox(settings, tmp_path):
    every = {"algorithm": "sfl-v1", **SMALL, **PROXIMAL, **settings}
    folder = run_app(tmp_path / "cut", **every, **CUT)
    expected = plain({k: v for k, v in every.items() if k not in settings}, [[0, 1, 2, 3]], 1)
    torch.testing.assert_close(weights(folder), expected, rtol=0, atol=1e-6)
    other = run_app(tmp_path / "fedavg", **{**every, "edge-strategy": "FedAvg"}, **CUT)
    assert max(float((weights(other)[n] - w).abs().max()) for n, w in expected.items()) > 1e-3


def test_scaffold_is_corrected_and_drawn(tmp_path):
    every = {**SMALL, **TWO, **PROXIMAL, "report_evaluate_every": 0}
    whole = run_app(tmp_path / "whole", algorithm="scaffold", **every)
    cut = run_app(tmp_path / "cut", algorithm="hsfl-scaffold", **{**every, **CUT})
    torch.testing.assert_close(weights(cut), weights(whole), rtol=0, atol=1e-6)


def test_beside_a_stack_and_in_other_processes_the_bits_are_the_same(tmp_path):
    settings = {"algorithm": "hsfl", **SMALL, **TWO, **PROXIMAL}
    alone = run_app(tmp_path / "alone", **settings, **CUT)
    assert same_weights(alone, run_app(tmp_path / "stacked", **settings, **CUT, stack=4))
    config = config_of(**settings, cut_layer=1, fine_tune_steps=0, split_execution="messages")
    grid = engine_of(config, client_app=lambda message, context: make_client_app(client_task)(message, context)).grid
    start = ArrayRecord(build_task(config).new_model().state_dict())
    *_, last = federation_of(config, grid).hierarchical.rounds(grid, start, 3)
    found, expected = last.arrays.to_torch_state_dict(), weights(alone)
    assert {name: torch.equal(found[name], expected[name]) for name in expected} == dict.fromkeys(expected, True)
