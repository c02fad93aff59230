"""The full-model client: local SGD and evaluation."""

import copy

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from torch import nn
from torch.nn.functional import cross_entropy

from espalier.clients.client_app import make_client_app
from espalier.clients.randomness import client_generator
from espalier.clients.shared.correction import Correction
from espalier.clients.shared.local_round import OptimizerState, Pass
from espalier.clients.task import ClientTask, Examples, LocalTraining
from espalier.clients.whole.training import local_sgd, mini_batches
from espalier.sim.in_process_grid import InProcessGrid


def small_model(*, dropout=0.0):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 3))


def examples(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 6, generator=generator)
    return Examples(inputs, inputs[:, :3].argmax(1))


def task(model=None, count=50, partition_id=0, seed=0, **training):
    return ClientTask(
        model=model or small_model(),
        train=examples(count, 10 + partition_id),
        test=examples(20, 50 + partition_id),
        prepare=lambda x: x,
        training=LocalTraining(**{"batch_size": 8, "learning_rate": 0.1, **training}),
        seed=seed,
        partition_id=partition_id,
        class_counts=(1, 2, 3),
        device=torch.device("cpu"),
    )


def same(left, right):
    return all(torch.equal(a, b) for a, b in zip(left.state_dict().values(), right.state_dict().values(), strict=True))


def batches(count, generator_seed=0, **training):
    generator = torch.Generator().manual_seed(generator_seed)
    return [batch.tolist() for batch in mini_batches(count, LocalTraining(**training), generator)]


def test_a_whole_epoch_sees_every_example_once_in_a_new_order():
    both = batches(20, batch_size=8, local_epochs=2)
    assert [len(batch) for batch in both] == [8, 8, 4, 8, 8, 4]
    first, second = ([i for batch in epoch for i in batch] for epoch in (both[:3], both[3:]))
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second


def test_without_the_last_smaller_mini_batch():
    settings = {"batch_size": 8, "local_epochs": 2, "drop_last": True}
    full = [batch for batch in batches(20, batch_size=8, local_epochs=2) if len(batch) == 8]
    assert batches(20, **settings) == full
    sizes = {count: [len(batch) for batch in batches(count, **settings)] for count in (5, 8, 16, 17)}
    assert sizes == {5: [5, 5], 8: [8, 8], 16: [8] * 4, 17: [8] * 4}
    assert [len(batch) for batch in batches(20, **settings, batches_per_epoch=3)] == [8] * 6
    for count in (0, 5, 8, 16, 17, 20):
        assert LocalTraining(**settings).num_steps(count) == len(batches(count, **settings))


@pytest.mark.parametrize(("wanted", "sizes"), [(1, [8]), (3, [8, 8, 4]), (7, [8, 8, 4, 8, 8, 4, 8])])
def test_batches_per_epoch_counts_batches_and_goes_round_again_where_data_are_few(wanted, sizes):
    assert [len(batch) for batch in batches(20, batch_size=8, batches_per_epoch=wanted)] == sizes


@pytest.mark.parametrize("settings", [{"momentum": 0.9, "weight_decay": 0.01}, {"optimizer": "adam"}])
def test_local_sgd_is_the_plain_loop(settings):
    ours, reference = small_model(), small_model()
    t = task(ours, local_epochs=2, **settings)
    loss = local_sgd(t, server_round=4)
    kind = torch.optim.Adam if settings.pop("optimizer", "sgd") == "adam" else torch.optim.SGD
    optimizer = kind(reference.parameters(), lr=0.1, **settings)
    losses, seen = 0.0, 0
    for batch in mini_batches(50, t.training, client_generator(0, 0, 4, "batches")):
        optimizer.zero_grad()
        batch_loss = cross_entropy(reference(t.train.inputs[batch]), t.train.labels[batch])
        batch_loss.backward()
        optimizer.step()
        losses, seen = losses + batch_loss.item() * len(batch), seen + len(batch)
    assert same(ours, reference)
    assert loss == pytest.approx(losses / seen, rel=1e-5)


def pulled_to(model, pull):
    return Correction(pull=pull, anchor={name: w.detach().clone() for name, w in model.named_parameters()})


def test_the_proximal_term_is_fedproxs():
    ours, reference = small_model(), small_model()
    t = task(ours, batches_per_epoch=4)
    local_sgd(t, server_round=1, due=Pass(correction=pulled_to(ours, 0.7)))
    start = [p.detach().clone() for p in reference.parameters()]
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for batch in mini_batches(50, t.training, client_generator(0, 0, 1, "batches")):
        optimizer.zero_grad()
        distance = sum(((p - s) ** 2).sum() for p, s in zip(reference.parameters(), start, strict=True))
        (cross_entropy(reference(t.train.inputs[batch]), t.train.labels[batch]) + 0.35 * distance).backward()
        optimizer.step()
    for left, right in zip(ours.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)


def test_the_proximal_term_of_a_weight_that_nothing_depends_on_is_zero():
    model = small_model()
    model.register_parameter("spare", nn.Parameter(torch.ones(2)))
    local_sgd(task(model, batches_per_epoch=4), server_round=1, due=Pass(correction=pulled_to(model, 0.7)))
    same_as = small_model()
    local_sgd(task(same_as, batches_per_epoch=4), server_round=1, due=Pass(correction=pulled_to(same_as, 0.7)))
    for name, weight in same_as.named_parameters():
        assert torch.equal(weight, model.get_parameter(name))
    assert torch.equal(model.spare, torch.ones(2))


def test_randomness_follows_seed_client_and_round_and_touches_no_global_generator():
    def trained(**changes):
        model = small_model(dropout=0.5)
        torch.manual_seed(changes.pop("outside", 1))
        state = torch.get_rng_state()
        server_round = changes.pop("server_round", 1)
        local_sgd(task(model, **changes), server_round)
        assert torch.equal(state, torch.get_rng_state())
        return model

    base = trained()
    assert same(base, trained(outside=2))
    assert not same(base, trained(seed=1))
    assert not same(base, trained(partition_id=1))
    assert not same(base, trained(server_round=2))


def test_messages_carry_weights_there_and_back():
    shared, start = small_model(), small_model()
    for p in start.parameters():
        p.data.mul_(0.5)
    app = make_client_app(lambda context: task(shared, partition_id=int(context.node_config["partition-id"]), count=30))
    grid = InProcessGrid(app, 2)
    ids = sorted(grid.get_node_ids())
    content = RecordDict({"arrays": ArrayRecord(start.state_dict()), "config": ConfigRecord({"server-round": 3})})
    replies = grid.send_and_receive([Message(content, node_id, "train") for node_id in ids])
    profiles = grid.send_and_receive([Message(RecordDict(), node_id, "query.profile") for node_id in ids])
    for reply, profile in zip(replies, profiles, strict=True):
        own = profile.content["profile"]
        assert (own["num-train-examples"], own["num-test-examples"], own["class-counts"]) == (30, 20, [1, 2, 3])
        expected = copy.deepcopy(start)
        local_sgd(task(expected, partition_id=own["partition-id"], count=30), 3)
        received = reply.content["arrays"].to_torch_state_dict()
        assert all(torch.equal(received[name], tensor) for name, tensor in expected.state_dict().items())
        assert reply.content["metrics"]["num-examples"] == 30


def test_evaluation_is_on_the_clients_own_test_set_in_eval_mode():
    model = small_model(dropout=0.5)
    app = make_client_app(lambda context: task(small_model(dropout=0.5), partition_id=1))
    grid = InProcessGrid(app, 1)
    message = Message(
        RecordDict({"arrays": ArrayRecord(model.state_dict())}), next(iter(grid.get_node_ids())), "evaluate"
    )
    (reply,) = grid.send_and_receive([message])
    test = task(partition_id=1).test
    outputs = model.eval()(test.inputs).detach()
    metrics = reply.content["metrics"]
    assert metrics["loss"] == pytest.approx(float(cross_entropy(outputs, test.labels)), rel=1e-6)
    assert metrics["accuracy"] == pytest.approx(float((outputs.argmax(1) == test.labels).float().mean()))
    assert metrics["num-examples"] == 20


@pytest.mark.parametrize("change", ["shape", "missing"])
def test_weights_that_do_not_fit_are_an_error_reply(change):
    state = dict(small_model().state_dict())
    if change == "shape":
        state["0.weight"] = state["0.weight"][:, :3]
    else:
        del state["0.weight"]
    grid = InProcessGrid(make_client_app(lambda context: task()), 1)
    message = Message(RecordDict({"arrays": ArrayRecord(state)}), next(iter(grid.get_node_ids())), "train")
    (reply,) = grid.send_and_receive([message])
    assert "0.weight" in reply.error.reason


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9, "weight_decay": 0.01}, {"optimizer": "adam"}], ids=str)
def test_mini_batches_one_by_one_are_a_whole_pass_where_the_optimizer_goes_on(settings):
    whole, parts, held = small_model(), small_model(), OptimizerState()
    local_sgd(task(whole, **settings), 2)
    for number in range(7):
        local_sgd(task(parts, **settings), 2, due=Pass(batches=(number,), optimizer=held))
    assert same(parts, whole)


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9, "weight_decay": 0.01}, {"optimizer": "adam"}], ids=str)
def test_what_a_pass_does_not_train_stays_to_the_bit_and_trains_again_after_it(settings):
    model, before = small_model(), small_model()
    local_sgd(task(model, **settings), 2)  # leaves gradients
    middle = copy.deepcopy(model)
    local_sgd(task(model, **settings), 2, due=Pass(trains=("4.weight", "4.bias")))
    for name, weights in model.named_parameters():
        assert torch.equal(weights, middle.get_parameter(name)) == (not name.startswith("4"))
        assert not torch.equal(weights, before.get_parameter(name))
        assert weights.requires_grad
