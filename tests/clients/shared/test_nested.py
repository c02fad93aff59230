from typing import NamedTuple

import pytest
import torch

from espalier.clients.shared.nested import concatenate, map_tensors, rows_on, tensors_of

CPU = torch.device("cpu")


class Pair(NamedTuple):
    ids: torch.Tensor
    mask: torch.Tensor


def test_rows_are_taken_from_every_tensor_whatever_holds_it():
    ids, mask, size = torch.arange(12).reshape(6, 2), torch.arange(6) > 2, torch.arange(6.0)
    rows = torch.tensor([4, 1])
    taken = rows_on({"text": Pair(ids, mask), "more": [size, (size,)]}, rows, CPU)
    assert isinstance(taken["text"], Pair)
    assert taken["text"].ids.tolist() == [[8, 9], [2, 3]]
    assert taken["text"].mask.tolist() == [True, False]
    assert [taken["more"][0].tolist(), taken["more"][1][0].tolist()] == [[4.0, 1.0], [4.0, 1.0]]
    assert torch.equal(rows_on(ids, rows, CPU), ids[rows])
    assert [tensor.shape for tensor in tensors_of(taken)] == [(2, 2), (2,), (2,), (2,)]


def test_data_sets_are_put_one_after_the_other():
    whole = {"a": torch.arange(5), "b": (torch.ones(5, 3),)}
    parts = [rows_on(whole, slice(2), CPU), rows_on(whole, slice(2, None), CPU)]
    again = concatenate(parts)
    assert torch.equal(again["a"], whole["a"])
    assert torch.equal(again["b"][0], whole["b"][0])


def test_what_is_no_tensor_is_named():
    with pytest.raises(TypeError, match="inputs hold a str: allowed are tensors, and tuples, lists and dicts of them"):
        map_tensors(torch.clone, {"text": ["rain"]})
