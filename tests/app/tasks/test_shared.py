import warnings

import numpy as np
import torch

from espalier.app.tasks.shared import from_arrays, to_arrays
from espalier.clients.task import Examples


def test_tensors_come_back_as_they_were_laid_out_in_memory_that_is_not_copied():
    images = torch.arange(2 * 4 * 4 * 3, dtype=torch.uint8).reshape(2, 4, 4, 3).permute(0, 3, 1, 2)
    halves = torch.ones(4, dtype=torch.bfloat16)[2:]
    value = {"train": Examples((images, halves), torch.tensor([3, 4])), "part": images[1:], "none": torch.empty(0, 2)}
    head, arrays = to_arrays(value)
    for array in arrays:
        array.setflags(write=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        back = from_arrays(head, arrays)
    for before, after in zip(
        (*value["train"].inputs, value["train"].labels, value["part"], value["none"]),
        (*back["train"].inputs, back["train"].labels, back["part"], back["none"]),
        strict=True,
    ):
        assert (after.dtype, after.stride()) == (before.dtype, before.stride())
        assert torch.equal(after, before)
    assert back["part"].data_ptr() == back["train"].inputs[0][1:].data_ptr()
    assert back["train"].inputs[0].data_ptr() == images.data_ptr()
    assert sum(array.nbytes for array in arrays) == 96 + 8 + 16
    assert all(array.dtype == np.uint8 for array in arrays)
