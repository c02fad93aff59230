"""The optimizers are torch's, and do not import its compiler."""

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

from espalier.clients import optimizers
from espalier.clients.task import LocalTraining

SETTINGS = {
    "plain": {"lr": 0.1},
    "momentum": {"lr": 0.1, "momentum": 0.5},
    "decay": {"lr": 0.1, "weight_decay": 0.01},
    "SGD": {"lr": 0.1, "momentum": 0.5, "weight_decay": 0.01},
    "Adam": {"lr": 0.01, "weight_decay": 0.01},
}


def make(module, name, parameters):
    return getattr(module, "Adam" if name == "Adam" else "SGD")(parameters, **SETTINGS[name])


def train(optimizer, model, steps, seed):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 3, generator=generator)).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("name", SETTINGS)
def test_the_same_bits_as_torchs_also_with_a_state_taken_over(name):
    ours = nn.Sequential(nn.Linear(3, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 2))
    ours[2].requires_grad_(False)
    theirs = copy.deepcopy(ours)
    first, expected = make(optimizers, name, ours.parameters()), make(torch.optim, name, theirs.parameters())
    train(first, ours, 3, seed=1)
    second = make(optimizers, name, ours.parameters())
    second.load_state_dict(first.state_dict())
    train(second, ours, 3, seed=2)
    train(expected, theirs, 3, seed=1)
    train(expected, theirs, 3, seed=2)
    assert all(torch.equal(*pair) for pair in zip(ours.parameters(), theirs.parameters(), strict=True))
    assert second.state_dict()["state"].keys() == expected.state_dict()["state"].keys()


def test_parameters_without_a_gradient_and_those_of_sparse_ones_are_stepped_as_torchs():
    ours = nn.ModuleDict({"used": nn.Embedding(9, 4, sparse=True), "unused": nn.Linear(2, 2)})
    theirs = copy.deepcopy(ours)
    for model, kind in ((ours, optimizers.SGD), (theirs, torch.optim.SGD)):
        optimizer = kind(model.parameters(), lr=0.1)
        optimizer.step()
        for _ in range(2):
            optimizer.zero_grad()
            model["used"](torch.tensor([1, 3, 3])).square().sum().backward()
            optimizer.step()
    assert all(torch.equal(*pair) for pair in zip(ours.parameters(), theirs.parameters(), strict=True))


CLIENT = """
import sys, torch
from torch import nn
from espalier.clients import optimizers
model = nn.Linear(3, 2)
for make in (optimizers.SGD, optimizers.Adam):
    optimizer = make(model.parameters(), lr=0.1)
    optimizer.zero_grad()
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
sys.exit("torch._dynamo" in sys.modules)
"""


def test_a_process_that_trains_does_not_import_the_compiler():
    assert subprocess.run([sys.executable, "-c", CLIENT], check=False).returncode == 0


def test_an_optimizer_of_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="optimizer is 'Adam': allowed are 'sgd', 'adam' and a callable"):
        LocalTraining(optimizer="Adam")
