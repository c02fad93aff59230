"""What a pass asks for."""

import numpy as np
import pytest
import torch

from espalier.clients.shared.correction import Correction
from espalier.clients.shared.local_round import Done, OptimizerState, Pass


def test_blocks_of_a_cut_model_take_a_correction_and_nothing_more():
    drawn = Correction(pull=0.5, anchor={})
    assert Pass(correction=drawn).corrected() is drawn
    for more in ({"start": {}}, {"trains": ()}, {"epochs": 1}, {"batches": (0,)}, {"optimizer": OptimizerState()}):
        with pytest.raises(ValueError, match="which a cut model can't"):
            Pass(correction=drawn, **more).corrected()


def test_a_pass_trains_those_that_it_names_in_the_order_of_the_model():
    assert Pass().among(["a", "b", "c"]) == ["a", "b", "c"]
    assert Pass(trains={"c", "a", "x"}).among(["a", "b", "c"]) == ["a", "c"]


def test_a_pass_that_trains_no_weight_by_its_whole_name_is_told_what_is_allowed():
    with pytest.raises(TypeError, match=r"'head.weight': allowed are names of weights, such as \['head.weight'\]"):
        Pass(trains="head.weight")
    with pytest.raises(ValueError, match=r"names no weight that trains: allowed are whole names, such as 'head.bias'"):
        Pass(trains=["head"]).among(["head.bias", "head.weight"])


def test_numbers_that_are_told_or_kept_are_tensors_without_dimensions():
    weights = {"w": torch.ones(2), "count": torch.tensor(7)}
    told = {
        "half": 0.5,
        "n": 3,
        "is": True,
        "numpy": np.float32(0.25),
        "whole": torch.tensor(4),
        "single": torch.tensor(1.5),
        **weights,
    }
    done = Done(weights, told=told, kept={"n": 3, "whole": torch.tensor(4)})
    assert {name: (tensor.tolist(), tensor.dtype) for name, tensor in done.told.items()} == {
        "half": (0.5, torch.float64),
        "n": (3.0, torch.float64),
        "is": (1.0, torch.float64),
        "numpy": (0.25, torch.float64),
        "whole": (4.0, torch.float64),
        "single": (1.5, torch.float32),
        "w": ([1.0, 1.0], torch.float32),
        "count": (7, torch.int64),  # the model's own
    }
    assert {name: (tensor.item(), tensor.dtype) for name, tensor in done.kept.items()} == {
        "n": (3.0, torch.float64),
        "whole": (4, torch.int64),
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"told": {"x": "text"}}, r"Done.told\['x'\] is of str: allowed are tensors and numbers"),
        ({"kept": {"v": {"w": torch.ones(2)}}}, r"Done.kept\['v'\] is of dict: allowed are tensors and numbers"),
        ({"told": 0.5}, "Done.told is of float: allowed are tensors and numbers by name"),
    ],
)
def test_what_is_neither_a_tensor_nor_a_number_is_named(given, said):
    with pytest.raises(TypeError, match=said):
        Done({"w": torch.ones(2)}, **given)
