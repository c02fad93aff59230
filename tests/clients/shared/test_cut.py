"""Copies of blocks are those that `copy.deepcopy` makes."""

import copy

import pytest
import torch
from torch import nn

from espalier.clients.shared.cut import copied


class Tied(nn.Module):
    """Weights that stand in it twice, buffers of both kinds, a list and a reference to a part of itself."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.b.weight = self.a.weight
        self.register_buffer("saved", torch.ones(2))
        self.register_buffer("passing", torch.ones(2), persistent=False)
        self.parts, self.calls = [self.a], []
        self.a.register_forward_hook(lambda module, inputs, output: 2 * output)

    def forward(self, inputs):
        return self.b(self.a(inputs))


class Counted(nn.Module):
    """Says itself how it is copied."""

    copies = 0

    def __deepcopy__(self, memo):
        new = Counted()
        new.copies = self.copies + 1
        return new


def blocks():
    return nn.Sequential(
        nn.Conv2d(1, 3, 1), nn.BatchNorm2d(3), nn.Dropout(), nn.Flatten(), Tied(), nn.LSTM(3, 2), Counted()
    )


def test_a_copy_has_the_state_and_shares_nothing():
    original = blocks().train()
    ours, expected = copied(original), copy.deepcopy(original)
    assert repr(ours) == repr(expected)
    assert [n for n, _ in ours.named_modules()] == [n for n, _ in expected.named_modules()]
    for kind in ("named_parameters", "named_buffers"):
        pairs = zip(getattr(ours, kind)(), getattr(expected, kind)(), getattr(original, kind)(), strict=True)
        for (name, mine), (same, theirs), (_, its) in pairs:
            assert name == same
            assert torch.equal(mine, theirs)
            assert type(mine) is type(theirs)
            assert mine.data_ptr() != its.data_ptr()
    assert ours.state_dict().keys() == expected.state_dict().keys()
    assert all(vars(a).keys() == vars(b).keys() for a, b in zip(ours.modules(), expected.modules(), strict=True))


def test_what_is_one_in_the_original_is_one_in_the_copy():
    original = blocks()
    tied = copied(original)[4]
    assert tied.a.weight is tied.b.weight
    assert tied.parts == [tied.a]
    assert tied.calls is not original[4].calls
    assert torch.equal(tied(torch.ones(1, 3)), original[4](torch.ones(1, 3)))


def test_a_module_that_says_how_it_is_copied_is_copied_in_that_way():
    assert copied(blocks())[-1].copies == 1


@pytest.mark.parametrize("frozen", [True, False])
def test_frozen_weights_stay_frozen(frozen):
    original = nn.Sequential(nn.Linear(2, 2).requires_grad_(not frozen))
    assert all(p.requires_grad is not frozen for p in copied(original).parameters())
