"""Data that the processes of one machine have in common: tensors as arrays, which nobody copies."""

import pickle
import warnings
from io import BytesIO
from typing import Any

import numpy as np
import torch
from torch import Tensor

# Its bytes, then dtype, offset, size and stride of the tensor in them.
Layout = tuple[int, torch.dtype, int, tuple[int, ...], tuple[int, ...]]


def to_arrays(value: Any) -> tuple[bytes, list[np.ndarray]]:
    """Return a value as bytes, and the memory of the tensors in it.

    Parameters
    ----------
    value : Any
        Can be pickled; holds tensors on the CPU.

    Returns
    -------
    tuple[bytes, list[np.ndarray]]
        The arrays, uint8, are the memory itself. Tensors that shared some share it still, laid out as they were.
    """
    file = BytesIO()
    pickler = _Pickler(file)
    pickler.dump(value)
    return file.getvalue(), pickler.arrays


def from_arrays(head: bytes, arrays: list[np.ndarray]) -> Any:
    """Return what `to_arrays` was given, with tensors in the memory of these arrays, which may be read-only."""
    with warnings.catch_warnings():
        # PyTorch knows no tensors that can't be written to, and a task's data are never written to.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        storages = [torch.from_numpy(array).untyped_storage() for array in arrays]
    return _Unpickler(BytesIO(head), storages).load()


class _Pickler(pickle.Pickler):
    def __init__(self, file: BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.arrays: list[np.ndarray] = []
        self._numbers: dict[int, int] = {}
        self._kept: list[Tensor] = []  # so that no other tensor gets its address

    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return None
        storage = value.untyped_storage()
        if storage.data_ptr() not in self._numbers:
            self._numbers[storage.data_ptr()] = len(self.arrays)
            self._kept.append(value)
            self.arrays.append(torch.empty(0, dtype=torch.uint8).set_(storage).numpy())
        number = self._numbers[storage.data_ptr()]
        return number, value.dtype, value.storage_offset(), tuple(value.shape), value.stride()


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: BytesIO, storages: list[torch.UntypedStorage]) -> None:
        super().__init__(file)
        self._storages = storages

    def persistent_load(self, layout: Layout) -> Tensor:
        number, dtype, offset, size, stride = layout
        return torch.empty(0, dtype=dtype).set_(self._storages[number], offset, size, stride)
