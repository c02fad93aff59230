"""Updates in 16 and in 8 bits a value."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..rounding import check_finite, from_int8, to_half, to_int8
from .codec import Codec, bytes_of, checked_scales, tensor_of


@dataclass(frozen=True)
class Float16(Codec):
    """The difference in float16: off by at most 1/2048 of each value, or 2^-25; beyond 65,504 it is that."""

    def num_bytes(self, count: int, dtype: torch.dtype) -> int:
        """Return 2 for each value."""
        return 2 * count

    def encode(self, values: Tensor, start: Tensor, draws: torch.Generator) -> np.ndarray:
        """Return the difference."""
        difference = values - start
        check_finite(difference, "float16")
        return bytes_of(to_half(difference, torch.float16))

    def decode(self, data: np.ndarray, start: Tensor) -> Tensor:
        """Return the start and the difference."""
        return start + tensor_of(data, torch.float16).to(start.dtype)


@dataclass(frozen=True)
class Int8(Codec):
    """The difference in int8, with a float32 scale for each array: off by at most 1/254 of the array's largest."""

    def num_bytes(self, count: int, dtype: torch.dtype) -> int:
        """Return 1 for each value, and 4 of the scale."""
        return 4 + count

    def encode(self, values: Tensor, start: Tensor, draws: torch.Generator) -> np.ndarray:
        """Return the scale and the difference in units of it."""
        difference = values - start
        check_finite(difference, "int8")
        return bytes_of(*to_int8(difference[None]))

    def decode(self, data: np.ndarray, start: Tensor) -> Tensor:
        """Return the start and the difference."""
        scales = checked_scales(tensor_of(data[:4], torch.float32))
        return start + from_int8(scales, tensor_of(data[4:], torch.int8)[None], start.dtype)[0]
