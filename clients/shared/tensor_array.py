"""A Flower array that holds a tensor by reference: its bytes are made when somebody asks for them."""

from collections.abc import Mapping
from functools import lru_cache
from io import BytesIO
from typing import Any, Final

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

STYPE: Final = "numpy.ndarray"


class TensorArray(Array):
    """An `Array` of a tensor that stays where it is: messages within a process copy nothing.

    To whoever receives it, it is a Flower array: ``numpy()`` is a copy, ``data`` are the bytes, made once and kept.
    It is sent to another process, pickled or changed as an ordinary `Array`.

    Parameters
    ----------
    values : Tensor
        Contiguous, without a graph, on any device. From now on nobody may write into it; who reads the array
        afterwards gets a ValueError instead of other numbers than were sent.
    """

    def __init__(self, values: Tensor) -> None:
        self.__dict__.update(
            dtype=_name(values.dtype),
            shape=tuple(values.shape),
            stype=STYPE,
            _values=values,
            _version=_version(values),
        )

    @property
    def values(self) -> Tensor:
        """The tensor itself, not to be written into.

        Raises
        ------
        ValueError
            If it was written into.
        """
        self._check()
        return self.__dict__["_values"].detach()

    @property
    def view(self) -> np.ndarray:
        """The tensor as a NumPy array that can't be written into, in main memory; ValueError as for `values`."""
        self._check()
        if "_view" not in self.__dict__:
            view = self.__dict__["_values"].cpu().numpy()
            view.flags.writeable = False
            self.__dict__["_view"] = view
        return self.__dict__["_view"]

    @property
    def data(self) -> bytes:  # type: ignore[override]
        """The tensor in NumPy's format; ValueError as for `values`."""
        if "_bytes" not in self.__dict__:
            view = self.view
            self.__dict__["_bytes"] = b"".join((header(view.dtype.str, view.shape), view.data))
        return self.__dict__["_bytes"]

    def numpy(self) -> np.ndarray:
        """Return a copy; ValueError as for `values`."""
        return self.view.copy()

    def deflate(self) -> bytes:
        """Deflate what other processes know: an `Array`."""
        return self._ordinary().deflate()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("dtype", "shape", "stype", "data"):  # no longer those of the tensor
            ordinary = self._ordinary()
            self.__class__ = Array  # type: ignore[assignment]
            self.__dict__.clear()
            self.__dict__.update(ordinary.__dict__)
        Array.__setattr__(self, name, value)

    def __eq__(self, other: object) -> bool:
        return self._ordinary() == (other._ordinary() if isinstance(other, TensorArray) else other)

    __hash__ = None  # type: ignore[assignment]

    def __copy__(self) -> "TensorArray":
        copied = TensorArray.__new__(TensorArray)
        copied.__dict__.update(self.__dict__)
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        return Array, (self.dtype, self.shape, self.stype, self.data)

    def _ordinary(self) -> Array:
        return Array(self.dtype, self.shape, self.stype, self.data)

    def _check(self) -> None:
        if self.__dict__["_version"] != _version(self.__dict__["_values"]):
            raise ValueError("it was written into after it was sent")


def num_bytes(array: Array) -> int:
    """Return the length of an array's data, without making them."""
    if not isinstance(array, TensorArray):
        return len(array.data)
    values = array.__dict__["_values"]
    return _header_bytes(_numpy_dtype(values.dtype), array.shape) + int(values.nbytes)


def record_by_reference(arrays: Mapping[str, Array]) -> ArrayRecord:
    """Return a record of these very arrays; ``ArrayRecord(arrays)`` would ask each for its bytes."""
    record = ArrayRecord()
    for name, array in arrays.items():
        record[name] = array
    return record


@lru_cache(maxsize=256)
def header(descr: str, shape: tuple[int, ...]) -> bytes:
    """Return what NumPy's format puts in front of the values; it takes as long to make as the values to copy."""
    buffer = BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": descr, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


@lru_cache(maxsize=256)
def _header_bytes(dtype: np.dtype, shape: tuple[int, ...]) -> int:
    return len(header(dtype.str, shape))


@lru_cache(maxsize=64)
def _name(dtype: torch.dtype) -> str:
    return str(_numpy_dtype(dtype))


@lru_cache(maxsize=64)
def _numpy_dtype(dtype: torch.dtype) -> np.dtype:
    return torch.empty(0, dtype=dtype).numpy().dtype


def _version(values: Tensor) -> int:
    """Return how often PyTorch wrote into a tensor; of inference mode's it does not know."""
    return 0 if values.is_inference() else values._version
