"""FedNova: equal to plain PyTorch with momentum and proximal steps; with equal steps it is FedAvg."""

import pytest
import torch
from flwr.app import ArrayRecord

from espalier.app.algorithms.fednova import Normalised, gradients_in
from espalier.app.ground.errors import UserError
from espalier.app.wiring.clients import client_task
from espalier.app.wiring.task_of_run import build_task
from espalier.clients.client_app import make_client_app
from espalier.strategies import Gathered
from tests.app.algorithms.plain import Clients, fednova
from tests.app.assembling import config_of, engine_of, federation_of
from tests.app.runs import run_app, summary, weights

# Clients make different numbers of steps.
SMALL = {"num-clients": 4, "local-epochs": 1, "batches-per-epoch": 0, "batch-size": 64, "global-rounds": 3}
SMALL |= {"alpha": 0.3, "learning-rate": 0.01}
TWO = {"num-edges": 2, "edge-rounds": 2}
UNTESTED = {"report_evaluate_every": 0}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("pull", [0.0, 2.0])
@pytest.mark.parametrize("tiers", [{}, TWO], ids=["one tier", "two tiers"])
def test_models_are_those_of_plain_pytorch(tiers, pull, momentum, tmp_path):
    settings = {"algorithm": "fednova", **SMALL, **tiers, "train.momentum": momentum}
    if pull:
        settings["edge-strategy"] = f"FedProx(proximal_mu={pull})"
    folder = run_app(tmp_path / "run", **settings, **UNTESTED)
    clients = Clients(config_of(**settings))
    assert len({clients.steps(i, 1) for i in range(4)}) > 1
    edges = [[0, 1], [2, 3]] if tiers else [[0, 1, 2, 3]]
    expected = fednova(clients, edges, 3, tiers.get("edge-rounds", 1), pull)
    torch.testing.assert_close(weights(folder), expected, rtol=0, atol=1e-6)
    assert summary(folder)["replies_left_out"] == 0


@pytest.mark.parametrize("strategy", ["FedAvg", "FedProx(proximal_mu=2.0)"])
def test_with_equal_steps_it_is_fedavg(strategy, tmp_path):
    equal = {**SMALL, **TWO, **UNTESTED, "batches-per-epoch": 2, "train.momentum": 0.9, "edge-strategy": strategy}
    ours, plain = (run_app(tmp_path / name, algorithm=name, **equal) for name in ("fednova", "h-fedavg"))
    torch.testing.assert_close(weights(ours), weights(plain), rtol=0, atol=1e-6)


def test_with_other_steps_it_is_not(tmp_path):
    ours, plain = (run_app(tmp_path / name, algorithm=name, **SMALL, **UNTESTED) for name in ("fednova", "fedavg"))
    assert max(float((weights(ours)[name] - own).abs().max()) for name, own in weights(plain).items()) > 1e-4


def test_gradients_are_counted_through_momentum_and_the_proximal_term():
    rho, a, tau = 0.9, 0.1, 5
    assert gradients_in(tau) == tau
    assert gradients_in(tau, rho) == pytest.approx((tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho))
    assert gradients_in(tau, 0.0, a) == pytest.approx((1 - (1 - a) ** tau) / a)
    assert gradients_in(tau, rho, a) == pytest.approx(10.2916, abs=1e-4)


def test_a_change_is_scaled_to_the_mean_number_of_gradients():
    x, told = {"w": torch.tensor([1.0])}, {n: {"fednova-gradients": torch.tensor(a)} for n, a in [(1, 2.0), (2, 4.0)]}
    models = {n: {"w": torch.tensor([3.0])} for n in (1, 2, 3)}
    made = Normalised().averaged(Gathered(x, models, {**told, 3: {}}, {1: 0.25, 2: 0.25, 3: 0.5}, 3))
    assert {n: own["w"].item() for n, own in made.items()} == {1: 1 + 2 * 3 / 2, 2: 1 + 2 * 3 / 4}


def test_clients_side_by_side_learn_what_each_learns_alone(tmp_path):
    every = {"algorithm": "fednova", **SMALL, **TWO, **UNTESTED, "train.momentum": 0.9}
    alone, stacked = run_app(tmp_path / "alone", **every), run_app(tmp_path / "stacked", **every, stack=4)
    torch.testing.assert_close(weights(stacked), weights(alone), rtol=0, atol=1e-5)


def test_an_optimizer_whose_gradients_can_not_be_counted_is_refused():
    with pytest.raises(UserError, match="optimizer = 'adam': allowed is 'sgd' for fednova"):
        config_of(algorithm="fednova", optimizer="adam")


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (0.0, "of no use"),
        (-1.0, "of no use"),
        (1e-30, "beside the model: its update"),
        (1e30, "its update"),
        (None, "no use"),
    ],
    ids=str,
)
def test_who_lies_about_the_number_is_left_out_by_name(number, reason):
    config = config_of(algorithm="fednova", **SMALL)
    app = make_client_app(client_task)

    def lying(message, context):
        reply = app(message, context)
        if context.node_config["partition-id"] == 2:
            told = {} if number is None else {"fednova-gradients": torch.tensor(number)}
            reply.content["client-half"] = ArrayRecord(told)
        return reply

    grid = engine_of(config, client_app=lying).grid
    federation = federation_of(config, grid)
    start = ArrayRecord(build_task(config).new_model().state_dict())
    (outcome,) = federation.hierarchical.rounds(grid, start, 1)
    (edge,) = outcome.edges.values()
    (failure,) = edge.updates[0].failures
    assert federation.client_of[failure.node_id] == 2
    assert reason in failure.reason
    assert len(edge.updates[0].participants) == 3
