"""A default run of FedAvg is FedAvg: a plain loop gives its weights, to the bit, however long it goes on."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from espalier.app.tasks.images import examples
from espalier.app.wiring.task_of_run import build_task
from espalier.clients.randomness import client_generator
from espalier.clients.task import LocalTraining
from espalier.clients.whole.training import mini_batches
from tests.app.assembling import config_of
from tests.app.runs import run_app, summary, weights


def fedavg(config):
    """McMahan et al., algorithm 1, on the run's own data, first model and mini-batches."""
    task, train = build_task(config), config.train
    training = LocalTraining(train.local_epochs, train.batches_per_epoch, train.batch_size)
    model = task.new_model()
    clients = [examples(task.data.train, indices.train) for indices in task.client_indices]
    inputs = [task.normaliser()(client.inputs) for client in clients]
    total = sum(map(len, clients))
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for t in range(1, config.federation.global_rounds + 1):
        average = dict.fromkeys(weights, 0.0)
        for number, client in enumerate(clients):
            model.load_state_dict(weights)
            optimizer = torch.optim.SGD(model.parameters(), lr=train.learning_rate)
            for batch in mini_batches(len(client), training, client_generator(config.seed, number, t, "batches")):
                optimizer.zero_grad()
                cross_entropy(model(inputs[number][batch]), client.labels[batch]).backward()
                optimizer.step()
            for name, tensor in model.state_dict().items():
                average[name] = average[name] + tensor * (len(client) / total)
        weights = average
    return weights


@pytest.mark.parametrize(("seed", "rounds"), [(0, 150), (1, 20), (2, 20)])
def test_a_default_run_of_fedavg_is_fedavg_to_the_bit(seed, rounds, tmp_path):
    short = {"num-clients": 3, "local-epochs": 1, "batches-per-epoch": 1}  # so that it takes a second
    settings = {"algorithm": "fedavg", "global-rounds": rounds, "seed": seed, **short}
    folder = run_app(tmp_path / "run", **settings, report_evaluate_every=0)
    expected = fedavg(config_of(**settings))
    assert {name: torch.equal(w, expected[name]) for name, w in weights(folder).items()} == dict.fromkeys(
        expected, True
    )
    assert summary(folder)["replies_left_out"] == 0
