"""FedPer: heads stay with the clients, and all else is FedAvg's average."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from espalier.app.algorithms.algorithm import ONE_NODE
from espalier.app.algorithms.fedper import FEDPER, head_names
from espalier.app.command_line import main
from espalier.clients.half import PLAIN
from espalier.clients.memory import OWN_WEIGHTS
from espalier.strategies import AlgorithmEdge
from tests.app.algorithms.plain import Clients, two_tiers
from tests.app.algorithms.plain_personal import loss
from tests.app.algorithms.test_local import losses
from tests.app.assembling import config_of
from tests.app.runs import kept_in, run_app, same_weights, summary, weights

SMALL = {"num-clients": 4, "local-epochs": 1, "batches-per-epoch": 2, "global-rounds": 3, "alpha": 0.3}
TWO = {"num-edges": 2, "edge-rounds": 2}
# FedPer whose head travels like all else.
AVERAGED = replace(
    FEDPER,
    client=PLAIN,
    make_edge=lambda site: AlgorithmEdge(site.federation.edge_strategy.build({**ONE_NODE, "fraction_train": 1.0})),
)


def test_the_head_is_the_last_block():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    assert head_names(model) == ["2.weight", "2.bias"]


@pytest.mark.parametrize("algorithm", ["fedper", "fedrep", "fedbabu"])
@pytest.mark.parametrize("model", ["log_outputs", "one_layer"])
def test_a_model_without_a_head_is_refused(algorithm, model, tmp_path, capsys):
    settings = [f"algorithm={algorithm}", f"model=tests.app.own_models:{model}", f"output-dir={tmp_path / 'run'}"]
    assert main(settings) == 2
    allowed = "allowed is another one, or a model whose last block, the head, has weights"
    assert capsys.readouterr().err == f"error: algorithm = '{algorithm}': {allowed}\n"


@pytest.mark.parametrize("tiers", [{}, TWO], ids=["one tier", "two tiers"])
def test_bodies_are_averaged_and_heads_are_each_ones_own(tiers, tmp_path):
    settings = {"algorithm": "fedper", **SMALL, **tiers}
    folder = run_app(tmp_path / "run", **settings)
    clients = Clients(config_of(**settings))
    heads = set(head_names(clients.model))
    own = [{n: w for n, w in clients.start().items() if n in heads} for _ in clients.sizes]

    def round_of_edge(j, members, x, server_round):
        models = {i: clients.train(i, {**x, **own[i]}, server_round) for i in members}
        for i, model in models.items():
            own[i] = {name: model[name] for name in heads}
        return {**clients.average(models, members), **{name: clients_start[name] for name in heads}}

    clients_start = clients.start()
    edges = [[0, 1], [2, 3]] if tiers else [[0, 1, 2, 3]]
    expected = two_tiers(clients, edges, round_of_edge, 3, tiers.get("edge-rounds", 1))
    torch.testing.assert_close(weights(folder), expected, rtol=0, atol=1e-6)
    # Each keeps the head that it has, and is evaluated with it.
    torch.testing.assert_close([kept[OWN_WEIGHTS] for kept in kept_in(folder)], own, rtol=0, atol=1e-6)
    of_own = [loss(clients, i, {**expected, **head}) for i, head in enumerate(own)]
    assert losses(folder) == pytest.approx(of_own, abs=1e-6)


def test_no_head_is_in_a_message(tmp_path):
    folder = run_app(tmp_path / "run", algorithm="fedper", **SMALL)
    state = weights(folder)
    body = sum(w.nbytes for name, w in state.items() if not name.startswith("head."))
    whole = run_app(tmp_path / "whole", algorithm="fedavg", **SMALL)
    for direction in ("uplink", "downlink"):
        of_both = [summary(f)["bytes_by_kind"]["cloud"][direction]["model"] for f in (folder, whole)]
        head = sum(w.nbytes for w in state.values()) - body
        # Of 4 clients and 3 rounds; an array has a header.
        assert 12 * head < of_both[1] - of_both[0] < 12 * (head + 2 * 150)


def test_with_its_head_averaged_it_is_fedavg_to_the_bit(tmp_path):
    averaged = run_app(tmp_path / "averaged", algorithm="tests.app.algorithms.test_fedper:AVERAGED", **SMALL, **TWO)
    assert same_weights(averaged, run_app(tmp_path / "plain", algorithm="h-fedavg", **SMALL, **TWO))


def test_clients_side_by_side_learn_what_each_learns_alone(tmp_path):
    every = {"algorithm": "fedper", **SMALL, "report_evaluate_every": 0}
    alone, stacked = run_app(tmp_path / "alone", **every), run_app(tmp_path / "stacked", **every, stack=4)
    torch.testing.assert_close(weights(stacked), weights(alone), rtol=0, atol=1e-5)
