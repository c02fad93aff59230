"""Gradients from a recording are those that Python computes, to the bit."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from espalier.clients.gradients import RecordedGradients, compute_gradients
from espalier.clients.shared.correction import Correction
from espalier.clients.shared.local_round import Pass
from espalier.clients.task import ClientTask, Examples, LocalTraining
from espalier.clients.whole.training import local_sgd
from tests.clients import tape


class Recorder:
    """Records as a GPU does, and counts."""

    def __init__(self):
        self.recordings = 0

    def __call__(self, compute):
        self.recordings += 1
        compute()  # to warm up
        return tape.record(compute)


class Counted(nn.Sequential):
    """Counts how often Python computes the model."""

    calls = 0

    def forward(self, inputs):
        self.calls += 1
        return super().forward(inputs)


def convolutional():
    torch.manual_seed(3)
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(144, 3)
    return Counted(*layers)


def task(model, client=0, count=43, gradients=compute_gradients, **training):
    draw = torch.Generator().manual_seed(client)
    data = Examples(
        torch.randint(256, (count, 1, 8, 8), dtype=torch.uint8, generator=draw),
        torch.randint(3, (count,), generator=draw),
    )
    return ClientTask(
        model=model,
        train=data,
        test=data,
        prepare=lambda pixels: pixels / 255,
        training=LocalTraining(**{"batch_size": 8, "local_epochs": 2, "learning_rate": 0.1, **training}),
        seed=0,
        partition_id=client,
        class_counts=(1, 1, 1),
        device=torch.device("cpu"),
        gradients=gradients,
    )


@pytest.mark.parametrize(
    ("settings", "mu"),
    [({}, 0.0), ({"momentum": 0.9, "weight_decay": 0.01}, 0.0), ({"optimizer": "adam"}, 0.0), ({}, 0.7)],
)
def test_clients_learn_the_same_bits_from_one_recording(settings, mu):
    ours, reference, recorder = convolutional(), convolutional(), Recorder()
    recorded = RecordedGradients(8, recorder)
    # Other clients, data and rates; 43 and 50 examples leave mini-batches of 3 and 2, and 5 are too few for one of 8.
    for server_round, client, count in ((1, 0, 43), (1, 1, 50), (2, 2, 5), (2, 0, 43)):
        training = {**settings, "learning_rate": 0.1 / server_round}
        pulled = Correction(pull=mu, anchor={name: w.detach().clone() for name, w in ours.named_parameters()})
        found = local_sgd(task(ours, client, count, recorded, **training), server_round, due=Pass(correction=pulled))
        expected = local_sgd(task(reference, client, count, **training), server_round, due=Pass(correction=pulled))
        assert found == expected
        for (name, left), right in zip(ours.state_dict().items(), reference.state_dict().values(), strict=True):
            assert torch.equal(left, right), name
    assert recorder.recordings == 1
    assert reference.calls == (6 + 7 + 1 + 6) * 2
    assert ours.calls == 2 + (1 + 1 + 1 + 1) * 2  # to record, and the mini-batches of another size


class Pair(nn.Module):
    """Takes two tensors, and has a weight that nothing depends on."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 2)
        self.spare = nn.Parameter(torch.ones(2))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, inputs):
        return self.layer(inputs["left"]) * inputs["right"] + self.frozen


def mini_batch(seed, count=4, dtype=torch.float32):
    draw = torch.Generator().manual_seed(seed)
    inputs = {"left": torch.randn((count, 3), generator=draw), "right": torch.randn((count, 2), generator=draw)}
    return inputs, torch.randn((count, 2), generator=draw).to(dtype)


def test_several_inputs_and_weights_without_a_gradient():
    model, recorder = Pair(), Recorder()
    reference, recorded = copy.deepcopy(model), RecordedGradients(4, recorder)
    for seed in range(3):
        model.zero_grad()
        reference.zero_grad()
        assert torch.equal(
            recorded(model, mse_loss, *mini_batch(seed)), compute_gradients(reference, mse_loss, *mini_batch(seed))
        )
        assert torch.equal(model.layer.weight.grad, reference.layer.weight.grad)
        assert (model.spare.grad, model.frozen.grad) == (None, None)
    assert recorder.recordings == 1


def test_another_model_loss_or_form_of_the_mini_batch_is_recorded_anew():
    first, second, recorder = Pair(), Pair(), Recorder()
    second.layer.weight.data += 1
    recorded = RecordedGradients(4, recorder)

    def halved(outputs, labels):
        return mse_loss(outputs.to(labels.dtype), labels) / 2

    def check(model, loss, inputs, labels, recordings):
        model.zero_grad()
        reference = copy.deepcopy(model)
        assert torch.equal(recorded(model, loss, inputs, labels), compute_gradients(reference, loss, inputs, labels))
        assert torch.equal(model.layer.bias.grad, reference.layer.bias.grad)
        assert recorder.recordings == recordings

    check(first, mse_loss, *mini_batch(0), recordings=1)
    check(first, mse_loss, *mini_batch(1), recordings=1)
    check(second, mse_loss, *mini_batch(2), recordings=2)
    check(second, halved, *mini_batch(3), recordings=3)
    check(second, halved, *mini_batch(4, dtype=torch.float64), recordings=4)
    inputs, labels = mini_batch(5, dtype=torch.float64)
    check(second, halved, {name: values.T.contiguous().T for name, values in inputs.items()}, labels, recordings=5)
    check(second, halved, *mini_batch(6, count=3), recordings=5)  # as ever


def test_what_reads_a_number_can_not_be_recorded():
    class Reads(nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs) if inputs.sum() > 0 else -super().forward(inputs)

    inputs, labels = torch.ones(4, 3), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(RuntimeError, match="can't be read"):
        RecordedGradients(4, tape.record)(Reads(3, 2), cross_entropy, inputs, labels)


def test_a_mini_batch_of_another_size_first_records_nothing():
    recorder, model = Recorder(), convolutional()
    local_sgd(task(model, count=5, gradients=RecordedGradients(8, recorder)), 1)
    assert recorder.recordings == 0


def test_inputs_that_are_not_dense_have_one_recording_too():
    model, recorder = nn.Sequential(nn.Flatten(), nn.Linear(6, 2)), Recorder()
    recorded = RecordedGradients(4, recorder)
    for seed in range(3):
        inputs, labels = mini_batch(seed)
        model.zero_grad()
        recorded(model, mse_loss, inputs["right"][:, None].expand(4, 3, 2), labels)
    assert recorder.recordings == 1


def test_a_recording_that_fails_leaves_the_model_as_it_is():
    def fails(compute):
        compute()
        raise RuntimeError("no room")

    model = convolutional()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError, match="no room"):
        RecordedGradients(8, fails)(model, cross_entropy, torch.rand(8, 1, 8, 8), torch.zeros(8, dtype=torch.int64))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_a_recording_is_of_the_weights_that_train():
    ours, reference = convolutional(), convolutional()
    recorded = RecordedGradients(8, Recorder())
    last = [name for name, _ in ours.named_parameters()][-2:]
    for due in (Pass(), Pass(trains=last), Pass()):
        found = local_sgd(task(ours, 0, 43, recorded), 1, due=due)
        assert found == local_sgd(task(reference, 0, 43), 1, due=due)
        for (name, left), right in zip(ours.state_dict().items(), reference.state_dict().values(), strict=True):
            assert torch.equal(left, right), name
