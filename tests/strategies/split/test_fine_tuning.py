"""Personalisation: every head is what plain SGD makes of it on its own client."""

from dataclasses import replace

import pytest
import torch
from flwr.app import Array, ArrayRecord, MetricRecord
from torch import nn
from torch.nn.functional import cross_entropy

from espalier.clients.randomness import client_generator
from espalier.clients.task import LocalTraining
from espalier.clients.whole.training import mini_batches
from espalier.strategies import ask_profiles
from espalier.strategies.exchange import converse
from espalier.strategies.split import FineTuning, Personalised, SplitFedV1
from espalier.strategies.views import MemberGrid
from tests.strategies.split.federation import Federation, assert_close, every, model_with_dropout, weights


def model_with_dropout_and_norm():
    model = model_with_dropout()
    model.third.add_module("norm", nn.BatchNorm1d(16))
    return model


def test_the_global_model_and_all_heads_of_phsfl_are_the_same_at_every_cut():
    """PHSFL, Remark 2: the cut is no part of the computation, also with a frozen head, edges and edge rounds."""
    federation = Federation(sizes=(20, 14, 9, 16))
    members = [profile.node_id for profile in ask_profiles(federation.grid())]
    head = federation.make_model().head.state_dict()
    frozen = ArrayRecord({f"head.{name}": Array(values.numpy()) for name, values in head.items()})

    def trained(cuts):
        grid, cut_of = federation.grid(), dict(zip(members, cuts, strict=True)).__getitem__
        make_edge = federation.split(SplitFedV1, cut_of, frozen=frozen)
        (outcome,) = federation.run(make_edge, num_edges=2, rounds=1, edge_rounds=2, grid=grid)
        tuning = make_edge("edge-0", 4).personalise(outcome.arrays, FineTuning(5, 0.05), MemberGrid(grid, members))
        return weights(outcome), converse(grid, {"": tuning})[""]

    model, personal = trained([1, 1, 1, 1])
    for cuts in ([2, 2, 2, 2], [3, 3, 3, 3], [1, 2, 3, 2]):
        other, others = trained(cuts)
        assert_close(other, model, 1e-13)
        for node_id in members:
            assert_close(dict(others.heads[node_id]), dict(personal.heads[node_id]), 1e-13)
            assert dict(others.metrics[node_id]) == pytest.approx(dict(personal.metrics[node_id]), rel=1e-13)


def model_with_a_fixed_bias():
    model = model_with_dropout()
    model.head.bias.requires_grad_(False)
    return model


def test_what_the_model_does_not_train_is_not_fine_tuned():
    federation = Federation(model_with_a_fixed_bias, sizes=(20, 14))
    grid = federation.grid()
    members = [profile.node_id for profile in ask_profiles(grid)]
    edge = federation.split(SplitFedV1, every(2))("edge-0", 2)
    model = federation.make_model()
    arrays = ArrayRecord(model.state_dict())
    result = converse(grid, {"": edge.personalise(arrays, FineTuning(3, 0.05), MemberGrid(grid, members))})[""]
    for node_id in members:
        head = {name.split(".")[-1]: array.numpy() for name, array in result.heads[node_id].items()}
        assert (head["bias"] == model.head.bias.numpy()).all()
        assert (head["weight"] != model.head.weight.detach().numpy()).any()


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


def test_who_does_not_tell_a_figure_has_failed_alone_and_keeps_the_head():
    heads = {node_id: {"head.bias": torch.zeros(2)} for node_id in (1, 2, 3, 4)}
    told = {1: {"accuracy": 0.5, "loss": 1.0}, 2: {"loss": 1.0}, 3: {"accuracy": [0.5], "loss": 2.0}}
    told[4] = {"accuracy": 0.5, "loss": 1.0, "top-x": 0.5}
    given = Personalised(heads, {node_id: MetricRecord(own) for node_id, own in told.items()})
    judged = given.judged_by(("accuracy", "loss"))
    assert judged.heads == heads
    assert list(judged.metrics) == [1]
    assert [(failure.node_id, failure.reason) for failure in judged.failures] == [
        (2, "metric 'accuracy' is None, expected a number"),
        (3, "metric 'accuracy' is [0.5], expected a number"),
        (4, "metric 'top-x' is not known"),
    ]
    assert list(given.judged_by(("loss",)).metrics) == [1, 2, 3]
