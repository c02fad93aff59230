"""Weights that layers share: which names they have, and which value."""

import torch
from torch import nn

from espalier.clients.shared.tied import as_loaded, other_names, with_other_names


def tied():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[2].weight = model[0].weight
    return model


def test_each_further_name_is_told_with_the_one_that_training_has():
    assert other_names(tied()) == {"1.weight": "0.weight", "2.weight": "0.weight"}
    assert other_names(nn.Linear(2, 2)) == {}


def test_names_that_differ_have_the_value_that_a_model_would_load():
    model = tied()
    state = {name: torch.full_like(weights, place) for place, (name, weights) in enumerate(model.state_dict().items())}
    model.load_state_dict(state)
    loaded = as_loaded(state, other_names(model))
    assert list(loaded) == list(state)
    for name, weights in model.state_dict().items():
        assert torch.equal(loaded[name], weights)


def test_a_value_that_training_made_is_that_of_all_names():
    others = other_names(tied())
    one = {"0.weight": torch.ones(2, 2), "1.weight": torch.zeros(2, 2)}
    assert torch.equal(with_other_names(one, others)["1.weight"], one["0.weight"])
    assert "2.weight" not in with_other_names({"0.bias": torch.ones(2)}, others)
