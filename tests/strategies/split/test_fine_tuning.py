"""Personalisation: every head is what plain SGD makes of it on its own client."""

from dataclasses import replace

import pytest
import torch
from flwr.app import ArrayRecord
from torch import nn
from torch.nn.functional import cross_entropy

from espalier.clients.randomness import client_generator
from espalier.clients.task import LocalTraining
from espalier.clients.training import mini_batches
from espalier.strategies import ask_profiles
from espalier.strategies.exchange import converse
from espalier.strategies.split import FineTuning, SplitFedV1
from espalier.strategies.views import MemberGrid
from tests.strategies.split.federation import Federation, assert_close, every, model_with_dropout


def model_with_dropout_and_norm():
    model = model_with_dropout()
    model.third.add_module("norm", nn.BatchNorm1d(16))
    return model


def test_a_head_is_k_steps_of_sgd_on_its_clients_mini_batches_all_else_at_rest():
    federation = Federation(model_with_dropout_and_norm, sizes=(20, 33, 14))
    federation.tasks = [replace(task, seed=1) for task in federation.tasks]
    grid = federation.grid()
    members = [profile.node_id for profile in ask_profiles(grid)]
    edge = federation.split(SplitFedV1, every(2))("edge-0", 3)
    arrays = ArrayRecord(federation.make_model().state_dict())
    result = converse(grid, {"": edge.personalise(arrays, FineTuning(3, 0.05), MemberGrid(grid, members))})[""]
    for i, node_id in enumerate(members):
        task, model = federation.tasks[i], federation.make_model().eval()
        optimizer = torch.optim.SGD(model[-1].parameters(), lr=0.05)
        order = client_generator(1, i, 0, "fine-tuning")
        for batch in mini_batches(len(task.train), LocalTraining(batches_per_epoch=3, batch_size=8), order):
            optimizer.zero_grad()
            cross_entropy(model(task.prepare(task.train.inputs[batch])), task.train.labels[batch]).backward()
            optimizer.step()
        expected = {f"head.{name}": tensor for name, tensor in model[-1].state_dict().items()}
        assert_close(dict(result.heads[node_id]), expected, 1e-12)
        right = (model(task.prepare(task.test.inputs)).argmax(1) == task.test.labels).double().mean()
        assert result.metrics[node_id]["accuracy"] == pytest.approx(float(right))
