"""The form of the tensors at the cut layer."""

import numpy as np
import pytest
import torch
from flwr.app import Array

from espalier.clients.shared.arrays import as_travels, rows_as_travel, to_array, to_tensor


@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 4, 5), (2, 3, 4, 5, 6), (0, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_a_tensor_comes_back_as_it_was(shape, dtype):
    tensor = torch.randn(shape).to(dtype)
    torch.testing.assert_close(to_tensor(to_array(tensor)), tensor, rtol=0, atol=0)


def test_images_travel_channels_last_in_numpys_format():
    images = torch.arange(120.0).view(2, 3, 4, 5)
    np.testing.assert_array_equal(to_array(images).numpy(), images.numpy().transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(to_array(images[0]).numpy(), images[0].numpy())


@pytest.mark.parametrize("shape", [(4, 2, 3, 5, 6), (4, 2, 7), (4, 2)])
def test_tensors_side_by_side_travel_without_one_more_copy(shape):
    rows = torch.randn(shape).transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
    for row, given in zip(rows_as_travel(rows), rows, strict=True):
        assert torch.equal(row, given)
        assert not row.requires_grad
        assert as_travels(row).data_ptr() == row.data_ptr()


def test_images_arrive_channels_last_in_memory():
    assert to_tensor(to_array(torch.randn(2, 3, 4, 5))).is_contiguous(memory_format=torch.channels_last)


def test_the_bytes_are_those_that_numpy_writes():
    values = torch.randn(3, 5)
    assert to_array(values).data == Array(values.numpy()).data


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (Array("float32", (2, 2), "numpy.ndarray", Array(np.zeros((2, 3), np.float32)).data), "float32 of shape"),
        (Array("float64", (2, 3), "numpy.ndarray", Array(np.zeros((2, 3), np.float32)).data), "float64 of shape"),
        (Array("float32", (2, 3), "numpy.ndarray", Array(np.zeros((2, 3), np.float32)).data[:-4]), "reshape"),
        (Array("float32", (2, 3), "numpy.ndarray", b""), "float32 of shape"),
    ],
)
def test_data_that_are_not_what_the_record_says_are_refused(array, message):
    with pytest.raises(ValueError, match=message):
        to_tensor(array)
