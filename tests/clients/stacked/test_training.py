"""Clients side by side: what each learns is what it learns alone, to rounding."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from espalier.app.tasks.models import build_model
from espalier.clients.shared.correction import Correction
from espalier.clients.shared.local_round import WHOLE_PASS, OptimizerState, Pass
from espalier.clients.stacked.blocks import StackedBlocks
from espalier.clients.stacked.model import StackedModel, check_stackable
from espalier.clients.stacked.training import stacked_sgd
from espalier.clients.task import ClientTask, Examples, LocalTraining
from espalier.clients.whole.training import local_sgd


class Residual(nn.Module):
    """A forward of its own."""

    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, groups=2, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        return torch.relu(x + self.norm(self.conv(x)))


def convolutional():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2),
        nn.GroupNorm(2, 4),
        Residual(4),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(4, 8),
        nn.Dropout(0.3),
        nn.ReLU(),
        nn.Linear(8, 3),
    ).double()


def small_cnn():
    return build_model("small-cnn", image_shape=(1, 8, 8), num_classes=3, seed=0).double()


def perceptron():
    return nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3, bias=False)).double()


MODELS = {"convolutional": convolutional, "small-cnn": small_cnn, "perceptron": perceptron}
COUNTS = (40, 18, 7, 35)  # examples: mini-batches of 8, and rests of 0, 2, 7 and 3


def tasks_of(model, **training):
    """Return clients of different data in numbers that leave different rests."""
    how = LocalTraining(**{"batch_size": 8, "learning_rate": 0.05, "local_epochs": 2, **training})
    made = []
    for client, count in enumerate(COUNTS):
        draw = torch.Generator().manual_seed(client)
        images = torch.randn((count, 1, 8, 8), generator=draw, dtype=torch.float64)
        inputs = images.flatten(1) if isinstance(model[0], nn.Linear) else images
        labels = torch.randint(3, (count,), generator=draw)
        data = Examples(inputs, labels)
        device = torch.device("cpu")
        made.append(ClientTask(model, data, data, lambda x: x, how, 7, client, (1, 1, 1), device))
    return made


def starts_of(model):
    """Return a state for every client, each another."""
    draw, states = torch.Generator().manual_seed(5), []
    for _ in COUNTS:
        one = copy.deepcopy(model)
        for weights in one.parameters():
            weights.data += 0.05 * torch.randn(weights.shape, generator=draw, dtype=weights.dtype)
        states.append({name: tensor.clone() for name, tensor in one.state_dict().items()})
    return states


def corrections_of(clients, starts, mu, drifts):
    """Return each client's correction: a pull to where it starts, a drift that is its own, or neither."""
    draw, found = torch.Generator().manual_seed(3), []
    for task, start in zip(clients, starts, strict=True):
        trained = {name: start[name] for name, _ in task.model.named_parameters()}
        noise = {n: 0.1 * torch.randn(w.shape, generator=draw, dtype=w.dtype) for n, w in trained.items() if drifts}
        found.append(Correction(drift=noise, pull=mu, anchor=trained if mu else {}))
    return found


def alone(task, start, training, due):
    task.model.load_state_dict(start)
    loss = local_sgd(task, 3, training, due)
    return {name: tensor.clone() for name, tensor in task.model.state_dict().items()}, loss


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "training",
    [
        {},
        {"momentum": 0.9, "weight_decay": 0.01},
        {"optimizer": "adam", "learning_rate": 0.01, "weight_decay": 0.01},
        {"batches_per_epoch": 3},
        {"mu": 0.5},
        {"drifts": True},
        {"mu": 0.5, "drifts": True, "momentum": 0.9},
    ],
    ids=str,
)
def test_each_client_learns_what_it_learns_alone(model, training):
    training = dict(training)
    mu, drifts = training.pop("mu", 0.0), training.pop("drifts", False)
    model = MODELS[model]()
    clients, starts = tasks_of(model, **training), starts_of(model)
    # A plan may give each its own number of epochs.
    plans = [replace(task.training, local_epochs=1 + i % 3) for i, task in enumerate(clients)]
    before = [{name: tensor.clone() for name, tensor in start.items()} for start in starts]
    passes = [Pass(correction=own) for own in corrections_of(clients, starts, mu, drifts)]
    states, losses = stacked_sgd(StackedModel(model), clients, starts, 3, plans, passes)
    for i, task in enumerate(clients):
        state, loss = alone(task, starts[i], plans[i], passes[i])
        assert losses[i] == pytest.approx(loss, abs=1e-6)
        assert states[i].keys() == state.keys()
        for name, tensor in state.items():
            torch.testing.assert_close(states[i][name], tensor, rtol=1e-8, atol=1e-8)
            assert tensor.dtype == states[i][name].dtype
    assert all(torch.equal(a[n], b[n]) for a, b in zip(before, starts, strict=True) for n in a)


def test_a_frozen_head_stays_as_it_was_to_the_bit():
    model = small_cnn()
    model[-1].requires_grad_(False)
    clients, starts = tasks_of(model), starts_of(model)
    states, _ = stacked_sgd(StackedModel(model), clients, starts, 3, [t.training for t in clients])
    for i, task in enumerate(clients):
        state, _ = alone(task, starts[i], task.training, WHOLE_PASS)
        for name, tensor in state.items():
            torch.testing.assert_close(states[i][name], tensor, rtol=1e-8, atol=1e-8)
        assert torch.equal(states[i]["head.weight"], starts[i]["head.weight"])
        assert not torch.allclose(states[i]["conv1.0.weight"], starts[i]["conv1.0.weight"], atol=1e-4)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("settings", [{"momentum": 0.9, "weight_decay": 0.01}, {"optimizer": "adam"}], ids=str)
def test_parts_of_a_model_and_of_a_round_train_as_they_do_alone(model, settings):
    """Passes of one mini-batch that go on with an optimizer, then of the last layer alone."""
    model = MODELS[model]()
    last = [[name for name, _ in model.named_parameters()][-1]]
    clients, starts = tasks_of(model, **settings), starts_of(model)
    plans, stack = [task.training for task in clients], StackedModel(model)
    side_by_side, each = [OptimizerState() for _ in clients], [OptimizerState() for _ in clients]
    states, expected = list(starts), list(starts)
    for batches in ((1,), (0, 1, 1), (0,)):
        parts = {"batches": batches, "trains": last if batches == (0,) else None}
        before = [{name: tensor.clone() for name, tensor in state.items()} for state in states]
        own = [Pass(**parts, optimizer=None if parts["trains"] else one) for one in side_by_side]
        states, _ = stacked_sgd(stack, clients, states, 3, plans, own)
        for i, task in enumerate(clients):
            due = Pass(**parts, optimizer=None if parts["trains"] else each[i])
            expected[i], _ = alone(task, expected[i], plans[i], due)
            for name, tensor in expected[i].items():
                torch.testing.assert_close(states[i][name], tensor, rtol=1e-8, atol=1e-8)
            moved = [name for name, _ in model.named_parameters() if not torch.equal(states[i][name], before[i][name])]
            assert moved == (parts["trains"] or [name for name, _ in model.named_parameters()])


def test_a_client_that_diverges_harms_no_other():
    model = small_cnn()
    clients, starts = tasks_of(model), starts_of(model)
    starts[1] = {name: tensor * float("nan") for name, tensor in starts[1].items()}
    states, losses = stacked_sgd(StackedModel(model), clients, starts, 3, [t.training for t in clients])
    assert [loss == loss for loss in losses] == [True, False, True, True]
    assert [bool(torch.isfinite(s["head.weight"]).all()) for s in states] == [True, False, True, True]


def test_a_resnet_can_be_stacked_and_runs_as_its_models_do():
    model = build_model("resnet18", image_shape=(3, 16, 16), num_classes=4, seed=0)
    check_stackable(model, torch.zeros(1, 3, 16, 16))


def test_dropout_of_images_that_come_in_another_order_than_alone_is_refused():
    model, example = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout(0.5)), torch.zeros(2, 3, 8, 8)
    last = example.contiguous(memory_format=torch.channels_last)
    for one in (example, last):
        check_stackable(model, one)
    check_stackable(model, last, travels=True)
    with pytest.raises(ValueError, match="side by side do not give"):
        check_stackable(model, example, travels=True)


class Mixing(nn.Module):
    """Adds up channels that would be those of other models."""

    def forward(self, x):
        return x - x.mean(1, keepdim=True)


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x * self.scale


class Half(nn.Module):
    """Two layers of which one takes no part."""

    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.used(x)


def tied():
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.ReLU(), layer)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Sequential(nn.Linear(3, 4), Mixing(), nn.Linear(4, 2)), "side by side do not give"),
        (nn.Sequential(nn.Linear(3, 4), nn.Softmax(1)), "side by side do not give"),
        (nn.Sequential(nn.Linear(3, 3), Own()), "layer '1' is of Own"),
        (nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)), "layer '1' is of LayerNorm"),
        (tied(), "share their weights"),
        (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=None)), "layer '1' averages over all mini-batches"),
        (nn.Sequential(nn.Linear(3, 4), nn.Unflatten(1, (2, 2)), nn.Flatten()), "side by side fail"),
        (nn.Sequential(nn.Linear(3, 3), Half()), "its weights 1.unused.weight, 1.unused.bias train, but"),
    ],
)
def test_what_cannot_be_stacked_is_refused(model, words):
    with pytest.raises(ValueError, match=words):
        check_stackable(model, torch.zeros(1, 3))


def test_a_model_whose_channels_stay_apart_is_not_refused():
    check_stackable(nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Tanh(), nn.Linear(4, 2)), torch.zeros(1, 3))
    check_stackable(nn.Linear(3, 2), torch.zeros(1, 3))


def test_inputs_that_are_no_floats_are_refused():
    with pytest.raises(ValueError, match="not one tensor of floats"):
        check_stackable(nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 2)), torch.zeros((1, 4), dtype=torch.int64))


def test_the_model_that_is_tried_stays_as_it_was():
    model = convolutional().float()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    check_stackable(model, torch.zeros(1, 1, 8, 8))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert F.cross_entropy(model(torch.zeros(2, 1, 8, 8)), torch.zeros(2, dtype=torch.int64)).isfinite()


def test_the_state_of_copies_is_read_anew_after_each_step(monkeypatch):
    # As from a GPU: what is read does not change with what is there.
    monkeypatch.setattr(torch.Tensor, "cpu", torch.Tensor.clone)
    model = perceptron()
    names = [name for name, _ in model.named_parameters()]
    starts = [model.state_dict()] * 3
    blocks = StackedBlocks(StackedModel(model), starts, names, LocalTraining(learning_rate=0.1), torch.device("cpu"))
    before = blocks.state(1)
    made = blocks.forward([0, 1], torch.randn((2, 8, 64), dtype=torch.float64), [None, None])
    gradients = list(torch.autograd.grad(made.outputs.sum(), made.leaves))
    blocks.state(1)
    blocks.step(made, gradients, 1)
    moved = {name for name, values in blocks.state(1).items() if not torch.equal(values, before[name])}
    assert moved == set(model.state_dict())  # BatchNorm's statistics and counter too
    assert all(torch.equal(values, before[name]) for name, values in blocks.state(2).items())
