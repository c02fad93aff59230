"""Runs of `cse-fsl`, `fsl-sage` and `decoupled`: what travels in them, which heads they can have, what is refused."""

import sys
from types import ModuleType

import pytest
import torch
from torch import nn

from espalier.app.algorithms.auxiliary_heads import HEADS, auxiliary_head
from espalier.app.ground.errors import UserError
from espalier.app.run.travelling import travelling_weights
from espalier.app.wiring.one_server import checked_task
from espalier.app.wiring.task_of_run import build_task
from tests.app.assembling import config_of
from tests.app.runs import lines, run_app, same_weights, weights

SMALL = {
    **{"num-clients": 4, "batch-size": 16, "batches-per-epoch": 5, "local-epochs": 1, "fine-tune.steps": 0},
    **{"fsl-sage.fit-steps": 2, "split.evaluate": "whole"},
}
HEADER = 128  # NumPy's, in front of each array
IN_FRONT = {"conv1.0.weight": (16, 1, 3, 3), "conv1.0.bias": (16,)}
BEHIND = {"auxiliary-head.2.weight": (10, 16), "auxiliary-head.2.bias": (10,)}
ACTIVATION = 4 * 4 * 16 * 4  # bytes of an example's: 16 channels of 4 x 4


def num_bytes(arrays):
    return sum(len(name) + HEADER + 4 * torch.Size(shape).numel() for name, shape in arrays.items())


def of_rounds(folder):
    """Return what went up and down between clients and their edge in each round, by kind."""
    found = [line["bytes"]["cloud"] for line in lines(folder, "global")]
    return [(own["uplink"], own["downlink"]) for own in found]


@pytest.mark.parametrize(("upload_every", "uploads"), [(1, 5), (2, 3), (5, 1), (6, 1), (0, 0)])
def test_the_bytes_of_a_round_are_the_arithmetic(upload_every, uploads, tmp_path):
    folder = run_app(tmp_path / "run", algorithm="cse-fsl", upload_every=upload_every, **SMALL, global_rounds=1)
    ((up, down),) = of_rounds(folder)
    block = 4 * num_bytes(IN_FRONT | BEHIND)
    assert up["client-block"] == down["client-block"] == block
    # Each array has a name of one digit. The labels were registered once, of 1,437 training examples.
    assert up.get("activations", 0) == 4 * uploads * (1 + HEADER + 16 * ACTIVATION)
    assert up.get("indices", 0) == 4 * uploads * (1 + HEADER + 16 * 4)
    assert "cut-gradient" not in down


def test_a_fitted_head_costs_its_bytes_in_the_round_after_a_fit(tmp_path):
    folder = run_app(tmp_path / "run", algorithm="fsl-sage", fit_every=2, **SMALL, global_rounds=5)
    found = of_rounds(folder)
    assert [down.get("edge-half", 0) for _, down in found] == [0, 4 * num_bytes(BEHIND), 0, 4 * num_bytes(BEHIND), 0]
    assert {(up["client-block"], down["client-block"]) for up, down in found} == {(4 * num_bytes(IN_FRONT),) * 2}
    assert not any("edge-half" in up or "client-half" in up for up, _ in found)


def test_two_tiers_send_the_head_with_the_model(tmp_path):
    """What a client's blocks learn does not depend on the edge's: they are the same in `decoupled` and `cse-fsl`."""
    settings = {**SMALL, "num-edges": 2, "edge-rounds": 2, "global_rounds": 2}
    one = run_app(tmp_path / "one", algorithm="cse-fsl", **settings)
    other = run_app(tmp_path / "other", algorithm="decoupled", **settings)
    for folder in (one, other):
        cloud = lines(folder, "global")[0]["bytes"]["cloud"]["uplink"]["model"]
        whole = {name: tuple(tensor.shape) for name, tensor in weights(folder).items()}
        assert cloud == 2 * num_bytes(whole | BEHIND)
    fronts = [{name: own for name, own in weights(folder).items() if name in IN_FRONT} for folder in (one, other)]
    assert all(torch.equal(fronts[0][name], fronts[1][name]) for name in IN_FRONT)
    assert not same_weights(one, other)


def test_a_head_is_the_same_wherever_it_is_made():
    config = config_of(algorithm="cse-fsl", seed=3)
    task = build_task(config)
    torch.manual_seed(17)
    once = auxiliary_head(config.split, task, config.seed).state_dict()
    again = auxiliary_head(config.split, build_task(config), config.seed).state_dict()
    assert list(once) == list(BEHIND)
    assert all(torch.equal(once[name], again[name]) for name in once)
    other = auxiliary_head(config.split, task, 4).state_dict()
    assert not torch.equal(once["auxiliary-head.2.weight"], other["auxiliary-head.2.weight"])


@pytest.mark.parametrize("cut", [1, 2, 3])
@pytest.mark.parametrize("name", HEADS)
def test_built_in_heads_fit_every_cut(name, cut):
    config = config_of(algorithm="cse-fsl", auxiliary=name, cut_layer=cut)
    task, model = checked_task(config)
    made = auxiliary_head(config.split, task, config.seed)
    activations = model[:cut].eval()(task.example_input())
    assert made.eval()(activations).shape == (1, 10)
    first = [key for key in model[cut].state_dict() if "." in key or name == "first-block"]
    beside = [
        n
        for n in travelling_weights(config.algorithm, config.split, config.seed, task, model)
        if n.startswith("auxiliary-head")
    ]
    assert len(beside) == (2 if name == "linear" else 2 + len(first))


@pytest.fixture
def own_module(monkeypatch):
    module = ModuleType("own_heads_of_test")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_a_head_of_ones_own_trains(own_module, tmp_path):
    def deep(activations, num_outputs, hidden=8):
        width = activations[0].numel()
        return nn.Sequential(nn.Flatten(), nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, num_outputs))

    own_module.deep = deep
    settings = {**SMALL, "algorithm": "cse-fsl", "global_rounds": 1}
    own = run_app(tmp_path / "own", **settings, auxiliary="own_heads_of_test:deep(hidden=4)")
    (up, _), *_ = of_rounds(own)
    head = {"1.weight": (4, 256), "1.bias": (4,), "3.weight": (10, 4), "3.bias": (10,)}
    named = {f"auxiliary-head.{name}": shape for name, shape in head.items()}
    assert up["client-block"] == 4 * num_bytes(IN_FRONT | named)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda activations: nn.Flatten(), "a head that makes (1, 10) of activations (1, 16, 4, 4), not (1, 256)"),
        (lambda activations: 3, "a function that returns an nn.Module, not a int"),
        (lambda activations: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda activations: nn.Linear(3, 10), "RuntimeError: mat1 and mat2"),
        (lambda wrong: None, "missing 1 required positional argument: 'wrong'"),
    ],
)
def test_a_head_that_does_not_fit_is_refused_in_a_line(made, said, own_module):
    own_module.head = made
    with pytest.raises(UserError) as raised:
        checked_task(config_of(algorithm="cse-fsl", auxiliary="own_heads_of_test:head"))
    assert "split.auxiliary = 'own_heads_of_test:head'" in str(raised.value)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("algorithm", ["cse-fsl", "fsl-sage", "decoupled"])
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tail_layer": "head"}, "tail-layer = 'head': allowed is 'none'"),
        ({"transport": "stream"}, "split.transport = 'stream': allowed is 'messages'"),
        ({"cut_layer": "1,2"}, "cut-layer = '1,2': allowed is one cut for all clients"),
        ({"selection": "resource-aware"}, "selection = 'resource-aware': allowed is 'everybody'"),
        ({"auxiliary": "liner"}, "did you mean 'linear'?"),
    ],
)
def test_what_there_is_no_use_for_is_refused(settings, said, algorithm):
    with pytest.raises(UserError) as raised:
        checked_task(config_of(algorithm=algorithm, **settings))
    assert said in str(raised.value)
