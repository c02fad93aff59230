"""FedRep: heads stay with the clients and train first, bodies are averaged."""

from itertools import pairwise

import pytest
import torch

from espalier.app.algorithms.fedper import head_names
from espalier.app.algorithms.fedrep import fedrep_round
from espalier.app.config.parse import parse_config
from espalier.app.ground.errors import UserError
from espalier.app.tasks.node import ClientNode
from espalier.app.wiring.clients import ClientTasks
from espalier.clients.memory import OWN_WEIGHTS
from espalier.clients.shared.local_round import Begun, Learned
from espalier.clients.whole.training import local_sgd
from tests.app.algorithms.plain import Clients
from tests.app.algorithms.plain_personal import fedrep, loss
from tests.app.algorithms.test_local import losses
from tests.app.assembling import config_of
from tests.app.runs import kept_in, run_app, same_weights, weights

SMALL = {"num-clients": 4, "local-epochs": 1, "batches-per-epoch": 2, "global-rounds": 3, "alpha": 0.3}
SMALL |= {"fedrep.head-epochs": 2}
TWO = {"num-edges": 2, "edge-rounds": 2}
WITH_MEMORY = {"train.momentum": 0.9, "train.weight-decay": 0.01}


@pytest.mark.parametrize("tiers", [WITH_MEMORY, TWO], ids=["one tier", "two tiers"])
def test_models_are_those_of_plain_pytorch(tiers, tmp_path):
    settings = {"algorithm": "fedrep", **SMALL, **tiers}
    folder = run_app(tmp_path / "run", **settings)
    clients = Clients(config_of(**settings))
    edges = [[0, 1], [2, 3]] if "num-edges" in tiers else [[0, 1, 2, 3]]
    expected, own = fedrep(clients, edges, 3, tiers.get("edge-rounds", 1), head_names(clients.model), head_epochs=2)
    torch.testing.assert_close(weights(folder), expected, rtol=0, atol=1e-6)
    # Each keeps the head that it has, and is evaluated with it.
    torch.testing.assert_close([kept[OWN_WEIGHTS] for kept in kept_in(folder)], own, rtol=0, atol=1e-6)
    of_own = [loss(clients, i, {**expected, **head}) for i, head in enumerate(own)]
    assert losses(folder) == pytest.approx(of_own, abs=1e-6)


def test_what_is_frozen_stays_to_the_bit_in_both_phases():
    config = config_of(algorithm="fedrep", **SMALL, **WITH_MEMORY)
    task = ClientTasks(config).of(ClientNode(0))
    states, head = [{name: w.clone() for name, w in task.model.state_dict().items()}], head_names(task.model)
    start, sent = states[0], {"fedrep.head-epochs": torch.tensor(3.0)}
    conversation = fedrep_round(Begun(start, start, sent, own=head))
    due = next(conversation)
    assert due.epochs == 3
    states.append(trained(task, start, due))
    due = conversation.send(Learned(states[-1], path=0.1, steps=1))
    states.append(trained(task, due.start, due))
    stayed = [{name for name in start if torch.equal(a[name], b[name])} for a, b in pairwise(states)]
    assert stayed == [set(start) - set(head), set(head)]


def trained(task, state, due):
    task.model.load_state_dict(state)
    local_sgd(task, 1, due=due)
    return {name: weights.clone() for name, weights in task.model.state_dict().items()}


def test_clients_side_by_side_learn_what_each_learns_alone(tmp_path):
    every = {"algorithm": "fedrep", **SMALL, **WITH_MEMORY}
    alone, stacked = run_app(tmp_path / "alone", **every), run_app(tmp_path / "stacked", **every, stack=4)
    torch.testing.assert_close(weights(stacked), weights(alone), rtol=0, atol=1e-5)
    assert losses(stacked) == pytest.approx(losses(alone), abs=1e-5)


def test_epochs_of_heads_reach_clients_and_are_refused_by_name(tmp_path):
    few = {"algorithm": "fedrep", **SMALL, "global-rounds": 1, "report_evaluate_every": 0}
    twice = run_app(tmp_path / "twice", **few)
    assert not same_weights(twice, run_app(tmp_path / "once", **{**few, "fedrep.head-epochs": 1}))
    with pytest.raises(UserError, match=r"fedrep\.head-epochs = 0"):
        parse_config({"fedrep.head-epochs": 0})
