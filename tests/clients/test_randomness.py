"""Whether a forward pass has to be seeded."""

import pytest
import torch
from torch import nn

from espalier.app.tasks.models import MODELS, build_model
from espalier.clients.randomness import client_generator, client_seed, may_draw, seeded_torch

CPU = torch.device("cpu")


class Noisy(nn.Module):
    def forward(self, inputs):
        return inputs + torch.randn_like(inputs)


def hooked(register):
    layer = nn.Linear(2, 2)
    getattr(layer, register)(lambda module, *values: None)
    return layer


@pytest.mark.parametrize(
    "layer",
    [nn.Dropout(), nn.RReLU(), Noisy(), hooked("register_forward_hook"), hooked("register_forward_pre_hook")],
)
def test_what_draws_or_is_not_known_is_seeded(layer):
    assert may_draw(nn.Sequential(nn.Linear(2, 2), nn.Sequential(layer)))


@pytest.mark.parametrize("name", [name for name in MODELS if "cnn" in name])
def test_the_plain_models_draw_nothing_and_are_not_seeded(name):
    model = build_model(name, image_shape=(1, 16, 16), num_classes=3, seed=0).train()
    before = torch.get_rng_state()
    model(torch.zeros(2, 1, 16, 16))
    assert torch.equal(before, torch.get_rng_state())
    assert not may_draw(model)


def test_what_is_drawn_in_between_follows_the_seed_and_nobody_outside_notices():
    before = torch.get_rng_state()
    drawn = []
    for seed in (1, 2, 1):
        with seeded_torch(seed, CPU):
            drawn.append(torch.rand(3))
    with pytest.raises(RuntimeError), seeded_torch(1, CPU):
        torch.rand(3) @ torch.rand(2)
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])
    assert torch.equal(before, torch.get_rng_state())
    assert client_generator(1, 2, 3, "x").initial_seed() == client_seed(1, 2, 3, "x") != client_seed(1, 2, 3, "y")
