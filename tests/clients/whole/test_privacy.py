"""Clients that clip and add noise by themselves: their updates, and the gradients of their examples."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from espalier.clients.shared.correction import Correction
from espalier.clients.shared.local_round import Pass
from espalier.clients.task import ClientTask
from espalier.clients.whole.privacy import MOST_AT_ONCE, PrivateSteps, clipped_gradients, private_sgd
from espalier.clients.whole.training import local_sgd
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
