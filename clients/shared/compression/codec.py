"""What a codec is: how the update of one array of a model travels."""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor


class Codec(ABC):
    """Writes where an array of a model has got to, for a receiver that knows where it started from; reads it again.

    Attributes
    ----------
    keeps_errors : bool (default: False)
        What it leaves out of an update is added to the next one, at the sender (error feedback).
    """

    keeps_errors: ClassVar[bool] = False

    @abstractmethod
    def num_bytes(self, count: int, dtype: torch.dtype) -> int:
        """Return how many bytes the update of an array of so many values takes: the same for all updates of it."""

    @abstractmethod
    def encode(self, values: Tensor, start: Tensor, draws: torch.Generator) -> np.ndarray:
        """Return what travels, `num_bytes` of uint8.

        Parameters
        ----------
        values : Tensor
            Where the array has got to; of shape (n,), n of 1 or more.
        start : Tensor
            Where it started from; of the same shape and data type.
        draws : torch.Generator
            The only source of chance.

        Raises
        ------
        ValueError
            If the update can't be written, such as one with NaN.
        """

    @abstractmethod
    def decode(self, data: np.ndarray, start: Tensor) -> Tensor:
        """Return where the array has got to, as far as it was told; of the shape and data type of `start`.

        What comes in is `num_bytes` of uint8, and may be anybody's.

        Raises
        ------
        ValueError
            If they are no update.
        """


def bytes_of(*tensors: Tensor) -> np.ndarray:
    """Return the bytes of tensors, one after the other."""
    return np.concatenate([tensor.contiguous().reshape(-1).view(torch.uint8).numpy() for tensor in tensors])


def tensor_of(data: np.ndarray, dtype: torch.dtype) -> Tensor:
    """Return the numbers that bytes are: a copy, since they need not begin where a number may."""
    return torch.from_numpy(data.copy()).view(dtype)


def checked_scales(scales: Tensor) -> Tensor:
    """Return scales that came in; ValueError if one is negative, NaN or Inf."""
    if not bool(((scales >= 0) & torch.isfinite(scales)).all()):
        raise ValueError("a scale of its update is negative, NaN or Inf")
    return scales
