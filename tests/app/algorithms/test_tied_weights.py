"""A weight that layers share is one weight, whatever its names are, for every algorithm's client."""

from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

from espalier.app.command_line import main
from tests.app.runs import lines, run_app, weights

SMALL = {"num_clients": 4, "global_rounds": 2, "alpha": 0.3, "learning_rate": 0.1, "train.momentum": 0.5}


class Pair(nn.Module):
    """Two layers with one weight, which the second has by its own name, or by none."""

    def __init__(self, by_two_names):
        super().__init__()
        self.first, second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.bias = second.bias
        if by_two_names:
            self.second = nn.Module()
            self.second.weight = self.first.weight

    def forward(self, x):
        return torch.tanh(linear(torch.tanh(self.first(x)), self.first.weight, self.bias))


def pair_model(num_classes, by_two_names):
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh()), Pair(by_two_names), nn.Linear(8, num_classes)
    )


def by_two_names(num_classes, input_shape):
    return pair_model(num_classes, by_two_names=True)


def by_one_name(num_classes, input_shape):
    return pair_model(num_classes, by_two_names=False)


def tied_head(num_classes, input_shape):
    body, head = nn.Linear(64, num_classes), nn.Linear(num_classes, num_classes)
    middle = nn.Linear(num_classes, num_classes)
    head.weight = middle.weight
    return nn.Sequential(nn.Flatten(), body, nn.Tanh(), middle, head)


def tied_blocks(num_classes, input_shape):
    blocks = tied_head(num_classes, input_shape)
    first = nn.Sequential(*blocks[:3])
    return nn.Sequential(OrderedDict(first=first, middle=blocks[3], tanh=nn.Tanh(), head=blocks[4]))


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "feddyn", "ditto", "fedrep", "apfl", "pfedme"])
def test_a_shared_weight_trains_as_one(algorithm, tmp_path):
    one, two = (
        run_app(tmp_path / name, algorithm=algorithm, model=f"{__name__}:{name}", **SMALL)
        for name in ("by_one_name", "by_two_names")
    )
    found, expected = weights(two), weights(one)
    del found["1.second.weight"]
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    for left, right in zip(lines(one, "global"), lines(two, "global"), strict=True):
        assert left["clients"] == right["clients"]


@pytest.mark.parametrize("algorithm", ["fedper", "fedrep", "fedbabu"])
def test_a_weight_that_would_stay_and_travel_too_is_refused(algorithm, tmp_path, capsys):
    settings = [f"algorithm={algorithm}", f"model={__name__}:tied_head", f"output-dir={tmp_path / 'run'}"]
    assert main(settings) == 2
    assert capsys.readouterr().err == (
        "error: 3.weight and 4.weight are one weight of the model, of which the algorithm keeps one on clients and "
        "averages the other; allowed are two weights\n"
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("algorithm", ["hsfl", "phsfl"])
def test_a_head_that_trains_or_is_frozen_by_itself_shares_no_weight_with_the_body(algorithm, tmp_path, capsys):
    settings = [
        f"algorithm={algorithm}",
        f"model={__name__}:tied_blocks",
        "cut-layer=1",
        f"output-dir={tmp_path / 'run'}",
    ]
    assert main(settings) == 2
    assert capsys.readouterr().err == (
        "error: middle.weight and head.weight are one weight of the model, of which the head's is frozen, or "
        "fine-tuned alone; allowed are two weights\n"
    )


def test_a_head_that_trains_with_the_body_may_share_a_weight_with_it(tmp_path):
    settings = {**SMALL, "model": f"{__name__}:tied_blocks"}
    whole = run_app(tmp_path / "whole", algorithm="h-fedavg", num_edges=2, **settings)
    cut = run_app(tmp_path / "cut", algorithm="hsfl", num_edges=2, cut_layer=1, fine_tune_steps=0, **settings)
    torch.testing.assert_close(weights(cut), weights(whole), rtol=0, atol=1e-6)
