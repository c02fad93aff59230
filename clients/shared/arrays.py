"""Arrays in messages: how tensors at the cut layer travel, and how what comes from others is read."""

from collections.abc import Mapping
from functools import lru_cache
from io import BytesIO

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from .tensor_array import STYPE, TensorArray, header, record_by_reference

_PREFIX_BYTES = 10  # of NumPy's format 1.0: magic, version, and the length of the header in two bytes


def to_array(tensor: Tensor) -> Array:
    """Return activations or a cut gradient as they travel: in NumPy's format, images channels last.

    Within a process the tensor itself travels, not to be written into from now on, and a GPU's stays there: see
    `TensorArray`.

    Parameters
    ----------
    tensor : Tensor
        Of any shape; images (N, C, H, W) travel as (N, H, W, C), as convolutions like them in memory.
    """
    return TensorArray(as_travels(tensor))


def to_tensor(array: Array) -> Tensor:
    """Return the tensor that `to_array` packed; it may be the sender's own and must not be written into.

    Raises
    ------
    ValueError
        If the data are not those of an array of the dtype and the shape that the record names, or somebody wrote into
        the tensor.
    """
    if isinstance(array, TensorArray):
        return as_computed(array.values)
    prefix = header(_dtype(array.dtype).str, tuple(array.shape))
    if not array.data.startswith(prefix):
        raise ValueError(f"the data are not those of an array of {array.dtype} of shape {tuple(array.shape)}")
    # A copy, since torch shares no memory that can't be written to.
    values = np.frombuffer(bytearray(memoryview(array.data)[len(prefix) :]), array.dtype).reshape(array.shape)
    try:
        return as_computed(torch.from_numpy(values))
    except TypeError:
        raise ValueError(f"a tensor can't hold {array.dtype}") from None


def to_vector(numbers: np.ndarray) -> Array:
    """Return whole numbers as they travel, see `vector_of`; they are not to be written into from now on."""
    return TensorArray(torch.from_numpy(numbers))


def to_record(weights: Mapping[str, Tensor]) -> ArrayRecord:
    """Return weights as a Flower record of its own: copies, since weights are trained on."""
    return record_by_reference({name: TensorArray(_copied(tensor)) for name, tensor in weights.items()})


def to_weights(record: ArrayRecord) -> dict[str, Tensor]:
    """Return the tensors of a record by name; they may be the sender's own and must not be written into.

    Raises
    ------
    ValueError
        If an array can't be read, or somebody wrote into a tensor that was sent.
    """
    return {
        name: array.values if isinstance(array, TensorArray) else torch.from_numpy(np.array(values_of(array)))
        for name, array in record.items()
    }


def values_of(array: Array) -> np.ndarray:
    """Return the numbers of an array that came in a message; they can't be written to.

    Nothing is allocated, whatever its header says: the values are those in the message.

    Raises
    ------
    ValueError
        If it can't be read, or somebody wrote into a tensor that was sent.
    """
    try:
        if isinstance(array, TensorArray):
            return array.view
        if array.stype != STYPE:
            raise ValueError(f"{array.stype}")
        start = _PREFIX_BYTES + int.from_bytes(array.data[_PREFIX_BYTES - 2 : _PREFIX_BYTES], "little")
        shape, is_fortran, dtype = _parsed_header(array.data[:start])
        return np.ndarray(shape, dtype, array.data, start, order="F" if is_fortran else "C")
    except Exception as error:  # all of this only reads foreign data, which can fail in any way
        raise ValueError(f"can't be read ({' '.join(str(error).split())})") from None


def record_of(content: RecordDict, name: str) -> ArrayRecord:
    """Return an ArrayRecord of a reply; ValueError if it has none of that name."""
    if not isinstance(record := content.get(name), ArrayRecord):
        raise ValueError(f"its reply has no record {name!r}")
    return record


def config_of(content: RecordDict, name: str) -> ConfigRecord:
    """Return a ConfigRecord of an instruction; ValueError if it has none of that name."""
    if not isinstance(record := content.get(name), ConfigRecord):
        raise ValueError(f"there is no config record {name!r}")
    return record


def array_of(content: RecordDict, name: str) -> Array:
    """Return the array that is in the record of the same name; ValueError if a reply has none."""
    if name not in (record := record_of(content, name)):
        raise ValueError(f"its record {name!r} has no array of that name")
    return record[name]


def vector_of(content: RecordDict, name: str) -> np.ndarray:
    """Return the vector of whole numbers, as int64, in a reply; ValueError if there is none."""
    return _whole_numbers(array_of(content, name), name)


def integers_of(content: RecordDict, name: str) -> np.ndarray:
    """Return the whole numbers, of any number of dimensions and as int64, in a reply; ValueError if there are none."""
    return _whole_numbers(array_of(content, name), name, is_vector=False)


def vector_at(record: ArrayRecord, place: str, name: str) -> np.ndarray:
    """Return a vector of whole numbers, as int64, of a record that has several; ValueError if it is none."""
    return _whole_numbers(record[place], name)


def _whole_numbers(array: Array, name: str, *, is_vector: bool = True) -> np.ndarray:
    try:
        values = values_of(array)
    except ValueError as error:
        raise ValueError(f"{name} {error}") from None
    if values.dtype.kind not in "iu" or not values.ndim or (is_vector and values.ndim > 1):
        expected = "a vector of integers" if is_vector else "integers, a row for each sample"
        raise ValueError(f"{name} are {values.dtype} of shape {values.shape}, expected {expected}")
    return values.astype(np.int64)


def count_of(metrics: MetricRecord, key: str, least: int = 0) -> int:
    """Return a metric that counts something; ValueError if it is no whole number from `least` on."""
    value = metrics.get(key)
    if not isinstance(value, int) or value < least:
        raise ValueError(f"{key} is {value!r}, expected a whole number from {least} on")
    return value


def as_travels(tensor: Tensor) -> Tensor:
    """Return a tensor without its graph, images (N, C, H, W) channels last; it stays on its device."""
    tensor = tensor.detach()
    return (tensor.permute(0, 2, 3, 1) if tensor.dim() == 4 else tensor).contiguous()


def rows_as_travel(rows: Tensor) -> Tensor:
    """Return tensors side by side, (n, N, ...), laid out so that `as_travels` copies none of them once more."""
    rows = rows.detach()
    if rows.dim() != 5:
        return rows.contiguous()
    return rows.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)


def as_computed(tensor: Tensor) -> Tensor:
    """Return what travelled channels last as the images (N, C, H, W) that it was."""
    return tensor.permute(0, 3, 1, 2) if tensor.dim() == 4 else tensor


def _dtype(name: str) -> np.dtype:
    """Return the data type of a name that came in a message; ValueError if there is none."""
    try:
        return np.dtype(name)
    except Exception:  # NumPy parses it, and "(1," is a SyntaxError
        raise ValueError(f"{name!r} is not a data type") from None


def _copied(tensor: Tensor) -> Tensor:
    """Return a tensor of its own on the CPU, without a graph."""
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


@lru_cache(maxsize=256)
def _parsed_header(prefix: bytes) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return shape, whether Fortran's order, and data type; NumPy compiles the text as Python for it."""
    data = BytesIO(prefix)
    if (version := np.lib.format.read_magic(data)) != (1, 0):
        raise ValueError(f"format {version}")
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(data)
    if dtype.kind not in "biufc":
        raise ValueError(f"it holds {dtype}, not numbers")
    return shape, is_fortran, dtype
