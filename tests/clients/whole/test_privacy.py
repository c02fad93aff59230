"""Clients that clip and add noise by themselves: their updates, and the gradients of their examples."""

import copy
from dataclasses import replace

import pytest
import torch
from flwr.app import Message
from torch import nn
from torch.nn.functional import cross_entropy

from espalier.clients.client_app import make_client_app
from espalier.clients.messages.train import NUM_EXAMPLES, TRAIN, TRAIN_LOSS, Train
from espalier.clients.shared.arrays import to_record, to_weights
from espalier.clients.shared.correction import Correction
from espalier.clients.shared.local_round import Pass
from espalier.clients.task import ClientTask
from espalier.clients.whole.privacy import (
    MOST_AT_ONCE,
    PrivateSteps,
    PrivateUpdates,
    clipped_gradients,
    private_sgd,
    without_loss,
)
from espalier.clients.whole.training import local_sgd
from espalier.sim.in_process_grid import InProcessGrid
from tests.clients.whole.test_training import examples, task

CLIP = 0.5


def model_of(norm=None):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), norm or nn.GroupNorm(2, 8), nn.ReLU(), nn.Linear(8, 3))


def by_loop(model, inputs, labels, clip):
    """Return the sum of clipped gradients, one example after the other."""
    sums = [torch.zeros_like(own) for own in model.parameters()]
    for one, label in zip(inputs, labels, strict=True):
        model.zero_grad()
        cross_entropy(model(one[None]), label[None]).backward()
        length = torch.sqrt(sum((own.grad**2).sum() for own in model.parameters()))
        for total, own in zip(sums, model.parameters(), strict=True):
            total += own.grad * min(1.0, float(clip / length))
    return sums


def steps(clip, noise=0.0, *, is_secret=False):
    return PrivateSteps(clip, lambda training, num_examples: noise, is_secret)


@pytest.mark.parametrize("clip", [0.05, CLIP, 1e9])
def test_clipped_gradients_are_those_of_a_loop_over_examples(clip):
    model, data = model_of().double(), examples(MOST_AT_ONCE + 20)
    inputs, labels = data.inputs.double(), data.labels
    sums, loss = clipped_gradients(model, cross_entropy, inputs, labels, clip)
    expected = by_loop(model, inputs, labels, clip)
    for (name, _), own in zip(model.named_parameters(), expected, strict=True):
        assert torch.allclose(sums[name], own, rtol=1e-10, atol=1e-12), name
    assert loss / len(labels) == pytest.approx(float(cross_entropy(model(inputs), labels).detach()), rel=1e-10)


@pytest.mark.parametrize("spoiled", [float("nan"), float("inf"), 1e30])
def test_an_example_without_finite_gradient_is_as_one_that_is_not_there(spoiled):
    model, data = nn.Linear(6, 3), examples(8)
    inputs = data.inputs.clone()
    inputs[3] = spoiled
    model.weight.data *= 1e10  # with which 1e30 is beyond float32
    sums, loss = clipped_gradients(model, cross_entropy, inputs, data.labels, CLIP)
    others = torch.arange(8) != 3
    expected, loss_of_others = clipped_gradients(model, cross_entropy, inputs[others], data.labels[others], CLIP)
    assert all(torch.allclose(sums[name], expected[name], rtol=1e-5) for name in expected)
    assert loss == pytest.approx(loss_of_others)


def test_no_examples_have_no_gradient():
    data = examples(4)
    assert clipped_gradients(model_of(), cross_entropy, data.inputs[:0], data.labels[:0], CLIP) == ({}, 0.0)


@pytest.mark.parametrize("correction", [Correction(), Correction(pull=0.3, anchor=dict(model_of().named_parameters()))])
@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9, "weight_decay": 0.01}, {"optimizer": "adam"}])
def test_without_bound_and_noise_all_examples_in_a_batch_make_the_plain_steps(settings, correction):
    client = task(model_of(), count=30, batch_size=30, local_epochs=3, **settings)
    reference = copy.deepcopy(client.model)
    loss = private_sgd(client, 1, client.training, Pass(correction=correction), steps=steps(0.0))
    plain = task(reference, count=30, batch_size=30, local_epochs=3, **settings)
    expected = local_sgd(plain, 1, plain.training, Pass(correction=correction))
    assert loss == pytest.approx(expected, rel=1e-5)
    for own, other in zip(client.model.parameters(), reference.parameters(), strict=True):
        assert torch.allclose(own, other, atol=1e-5)


def test_noise_of_a_step_has_its_standard_deviation():
    """One step of rate 1 over an expected mini-batch of 8 examples."""
    wide = nn.Linear(6, 40_000)
    client = task(wide, count=32, batch_size=8, batches_per_epoch=1, learning_rate=1.0)
    made = []
    for noise in (0.0, 2.0):
        client.model.load_state_dict({name: torch.zeros_like(own) for name, own in wide.state_dict().items()})
        private_sgd(client, 1, client.training, steps=steps(CLIP, noise))
        made.append(wide.weight.detach().clone())
    assert float((made[1] - made[0]).std()) == pytest.approx(2.0 * CLIP / 8, rel=0.01)


def test_mini_batches_are_poisson_samples():
    """Their sizes have a binomial's mean and variance, and every example is in about as many."""
    seen = []
    client = task(model_of(), count=40, batch_size=10, batches_per_epoch=150, learning_rate=1e-6)

    class Noting(ClientTask):
        def training_inputs(self, batch, server_round, step):
            seen.append(batch)
            return super().training_inputs(batch, server_round, step)

    noting = Noting(**vars(client))
    private_sgd(noting, 1, noting.training, steps=steps(CLIP))
    sizes = torch.tensor([len(batch) for batch in seen]).double()
    assert len(sizes) == 150
    assert float(sizes.mean()) == pytest.approx(10, abs=4 * (7.5 / 150) ** 0.5)
    assert float(sizes.var()) == pytest.approx(7.5, rel=0.5)
    counts = torch.cat(seen).bincount(minlength=40).double()
    assert float((counts / 150 - 0.25).abs().max()) < 4 * (0.25 * 0.75 / 150) ** 0.5


def test_what_is_drawn_follows_the_seed_and_the_round_or_nothing_that_is_known():
    def trained(server_round, *, is_secret=False):
        client = task(model_of(nn.Dropout(0.5)))
        private_sgd(client, server_round, client.training, steps=steps(CLIP, 0.1, is_secret=is_secret))
        return torch.cat([own.detach().ravel() for own in client.model.parameters()])

    assert torch.equal(trained(1), trained(1))
    assert not torch.equal(trained(1), trained(2))
    assert not torch.equal(trained(1, is_secret=True), trained(1, is_secret=True))


def test_what_a_client_lacks_of_a_weight_gets_no_noise():
    model = nn.Sequential(nn.Linear(6, 8, bias=False), nn.Linear(8, 3))
    with torch.no_grad():  # a product of rank 2
        model[0].weight[2:] = 0
        model[1].weight[:, 2:] = 0
    client = replace(task(model), corners={"0.weight": (2, 6), "1.weight": (3, 2)})
    private_sgd(client, 1, client.training, steps=steps(CLIP, 1.0))
    assert not model[0].weight[2:].any()
    assert not model[1].weight[:, 2:].any()
    assert model[0].weight[:2].all()


def test_a_mini_batch_without_an_example_is_a_step_of_noise():
    def no_rows(inputs, *whose):
        assert len(inputs)
        return inputs

    client = replace(task(model_of(), batch_size=1), augment=no_rows)  # of 50 steps a third has none
    before = copy.deepcopy(client.model)
    private_sgd(client, 1, client.training, steps=steps(CLIP, 1.0))
    assert not torch.equal(before[0].weight, client.model[0].weight)


def replied(*outgoing, model=None):
    """Return the reply of a client to an instruction to train as it travels, and the model that was sent."""
    model = model or model_of()
    sent = {name: own.clone() for name, own in model.state_dict().items()}
    client = replace(task(model), outgoing=outgoing)
    grid = InProcessGrid(make_client_app(lambda context: client), 1)
    content = Train(to_record(sent), server_round=1).to_content()
    (reply,) = grid.send_and_receive([Message(content, grid.get_node_ids()[0], TRAIN)])
    return reply, sent


@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_an_update_that_is_not_finite_counts_as_zero_and_no_error_tells_of_it(noise):
    def spoiled(reply, message, context, task):
        arrays = to_weights(reply.content["arrays"])
        broken = {"0.weight": torch.full_like(arrays["0.weight"], torch.nan)}
        reply.content["arrays"] = to_record({**arrays, **broken})
        return reply

    reply, sent = replied(spoiled, PrivateUpdates(CLIP, noise, is_secret=False), model=model_of(nn.BatchNorm1d(8)))
    found = to_weights(reply.content["arrays"])
    assert int(found["1.num_batches_tracked"]) > int(sent["1.num_batches_tracked"])
    weights = [name for name, own in sent.items() if own.is_floating_point()]
    assert max(float((found[name] - sent[name]).abs().max()) for name in weights) <= 6 * noise * CLIP


class Moving(nn.Module):
    """A mean that follows the examples by no gradient."""

    def __init__(self):
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(8), requires_grad=False)

    def forward(self, x):
        if self.training:
            self.mean.lerp_(x.detach().mean(0), 0.5)
        return x - self.mean


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_a_weight_that_no_gradient_moves_comes_back_as_it_was_sent(noise):
    reply, sent = replied(PrivateUpdates(CLIP, noise, is_secret=False), model=model_of(Moving()))
    found = to_weights(reply.content["arrays"])
    assert [name for name in sent if torch.equal(found[name], sent[name])] == ["1.mean"]


def test_variances_stay_possible_under_noise():
    reply, _ = replied(PrivateUpdates(CLIP, 10.0, is_secret=False), model=model_of(nn.BatchNorm1d(8)))
    found = to_weights(reply.content["arrays"])
    assert float(found["1.running_var"].min()) == 0.0 < float(found["1.running_var"].max())
    assert float(found["1.running_mean"].min()) < 0.0


def test_a_reply_without_loss_has_all_else():
    reply, other = (replied(*outgoing)[0] for outgoing in ([], [without_loss]))
    assert reply.content["metrics"].pop(TRAIN_LOSS) > 0
    assert dict(other.content["metrics"]) == dict(reply.content["metrics"]) == {NUM_EXAMPLES: 50}
    assert other.content["arrays"].keys() == reply.content["arrays"].keys()
