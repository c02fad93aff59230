"""The optimizers are torch's, and do not import its compiler."""

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

from espalier.clients import optimizers

SETTINGS = {"SGD": {"lr": 0.1, "momentum": 0.5, "weight_decay": 0.01}, "Adam": {"lr": 0.01, "weight_decay": 0.01}}


def train(optimizer, model, steps, seed):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 3, generator=generator)).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("name", SETTINGS)
def test_the_same_bits_as_torchs_also_with_a_state_taken_over(name):
    ours = nn.Linear(3, 2)
    theirs = copy.deepcopy(ours)
    first = getattr(optimizers, name)(ours.parameters(), **SETTINGS[name])
    expected = getattr(torch.optim, name)(theirs.parameters(), **SETTINGS[name])
    train(first, ours, 3, seed=1)
    second = getattr(optimizers, name)(ours.parameters(), **SETTINGS[name])
    second.load_state_dict(first.state_dict())
    train(second, ours, 3, seed=2)
    train(expected, theirs, 3, seed=1)
    train(expected, theirs, 3, seed=2)
    assert all(torch.equal(*pair) for pair in zip(ours.parameters(), theirs.parameters(), strict=True))
    assert second.state_dict()["state"].keys() == expected.state_dict()["state"].keys()


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
