"""Whether a forward pass has to be seeded."""

import pytest
import torch
from torch import nn

from espalier.app.tasks.models import MODELS, build_model
from espalier.clients.randomness import client_generator, client_seed, may_draw


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


def test_a_clients_generator_has_its_seed():
    assert client_generator(1, 2, 3, "x").initial_seed() == client_seed(1, 2, 3, "x") != client_seed(1, 2, 3, "y")
