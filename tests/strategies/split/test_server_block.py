"""Where a model can be cut."""

import pytest
import torch
from torch import nn

from espalier.clients.shared.cut import Cut
from espalier.strategies.split.cuts import checked_cut, legal_cuts


def test_a_model_in_which_a_block_stands_twice_is_refused():
    relu = nn.ReLU()
    model = nn.Sequential(nn.Linear(2, 2), relu, nn.Linear(2, 2), relu, nn.Linear(2, 2))
    with pytest.raises(ValueError, match="one block stands in the model twice"):
        legal_cuts(model)
    assert list(legal_cuts(nn.Sequential(*model[:3], nn.ReLU(), model[4]))) == [1, 2, 3, 4]


def test_a_weight_can_not_be_on_both_sides_of_a_cut():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    model[3].weight = model[0].weight
    for cut in (1, Cut(1, 4), Cut(2, 4)):
        with pytest.raises(ValueError, match=r"cut .: 3.weight is a weight of blocks on another side of it too"):
            checked_cut(model, cut)
    with pytest.raises(ValueError, match=r"cut 1: 3.weight is a weight"):  # the client's front and tail train apart
        checked_cut(model, Cut(1, 3))
    model[3].weight = model[2].weight
    assert checked_cut(model, 1) == Cut(1, 4)  # both are the server's
    mask = torch.ones(3)
    model[0].register_buffer("mask", mask)
    model[3].register_buffer("mask", mask)
    assert checked_cut(model, 1) == Cut(1, 4)  # what does not train may be on both
    model[1].norm = model[3].norm = nn.BatchNorm1d(3, affine=False)
    assert checked_cut(model, 1) == Cut(1, 4)
    with pytest.raises(ValueError, match=r"cut 2: 3.norm.running_mean is a weight"):
        checked_cut(model, 2)
