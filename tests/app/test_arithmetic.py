"""Runs whose models compute in bfloat16, or with channels last: what is equal to the bit stays so."""

import logging

import pytest

from espalier.app.command_line import main
from espalier.app.config.parse import parse_config
from espalier.app.ground.errors import UserError
from espalier.app.tasks.common import set_up_torch
from tests.app.runs import run_app, same_weights, summary, weights

SMALL = {"num-clients": 4, "learning-rate": 0.05}
NARROW, LAST = {"train.precision": "bfloat16"}, {"train.channels-last": True}
CLOSE = {"train.precision": 0.01, "train.channels-last": 1e-5}


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    return run_app(tmp_path_factory.mktemp("usual") / "run", **SMALL, algorithm="fedavg")


@pytest.mark.parametrize("form", [NARROW, LAST, NARROW | LAST], ids=str)
def test_sfl_v1_is_fedavg_to_the_bit_whatever_carries_it(form, usual, tmp_path):
    whole = run_app(tmp_path / "whole", **SMALL, **form, algorithm="fedavg")
    away = max(float((weights(whole)[name] - own).abs().max()) for name, own in weights(usual).items())
    assert away < max(CLOSE[key] for key in form)
    assert away > 0 or form == LAST  # the layout alone may change no bit of so small images
    for number, carried in enumerate(
        [{}, {"split.execution": "messages", "cut-layer": "1,2"}, {"split.transport": "stream", "cut-layer": 3}]
    ):
        cut = run_app(tmp_path / f"cut-{number}", **SMALL, **form, algorithm="sfl-v1", **carried)
        assert same_weights(whole, cut)


def test_a_resumed_run_goes_on_to_the_same_bits_with_any_number_of_workers(tmp_path):
    settings = {**SMALL, **NARROW, **LAST, "algorithm": "phsfl", "num-edges": 2, "fine-tune-steps": 2}
    straight = run_app(tmp_path / "straight", **settings, workers=2)
    begun = run_app(tmp_path / "begun", **settings, **{"global-rounds": 1, "workers": 1})
    assert main([f"resume={begun}", "global-rounds=2"]) == 0
    assert same_weights(straight, begun)


def test_gradients_of_examples_are_narrow_too(tmp_path):
    private = {"privacy.level": "example-at-client", "privacy.noise": 0.01, "train.weighting": "equal"}
    found = [run_app(tmp_path / str(len(own)), **SMALL, **private, **own, algorithm="fedavg") for own in ({}, NARROW)]
    assert not same_weights(*found)
    assert summary(found[1])["replies_left_out"] == 0


def test_clients_do_not_train_side_by_side_with_either(caplog):
    with caplog.at_level(logging.WARNING):
        for form in (NARROW, LAST):
            assert parse_config({"stack": 4, **form}).decided.stack == 0


def test_tf32_needs_a_gpu():
    with pytest.raises(UserError, match=r"train\.precision = 'tf32': allowed is 'float32' or 'bfloat16' without a GPU"):
        set_up_torch("cpu", 1, "tf32")
