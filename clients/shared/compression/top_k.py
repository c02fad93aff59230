"""Top-k with error feedback: the largest values of an update, and those that were left out later."""

from dataclasses import dataclass
from math import ceil
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ..rounding import check_finite, largest_places, place_dtype
from .codec import Codec, bytes_of, tensor_of


@dataclass(frozen=True)
class TopK(Codec):
    """Of each array a share of the values, those that have changed most, with their places.

    What travels of a value is where it has got to, not how far: so with a share of 1 the receiver has the sender's
    bits, which ``start + (value - start)`` need not be. The values that are left out stay at the receiver as they were,
    and their changes are kept at the sender (``u = delta + e``, send ``top_k(u)``, ``e = u - sent``).

    Parameters
    ----------
    share : float (default: 0.1)
        Above 0, at most 1; at least one value of each array travels.
    """

    keeps_errors: ClassVar[bool] = True
    share: float = 0.1

    def __post_init__(self) -> None:
        if isinstance(self.share, bool) or not isinstance(self.share, int | float) or not 0 < self.share <= 1:
            raise ValueError(f"share is {self.share!r}: it must be a number > 0 and <= 1")

    def num_kept(self, count: int) -> int:
        """Return how many of so many values travel."""
        return max(1, ceil(self.share * count))

    def num_bytes(self, count: int, dtype: torch.dtype) -> int:
        """Return for each value that travels its bytes, and 2 of its place, 4 in an array of more than 65,536."""
        return self.num_kept(count) * (place_dtype(count).itemsize + dtype.itemsize)

    def encode(self, values: Tensor, start: Tensor, draws: torch.Generator) -> np.ndarray:
        """Return places and values."""
        difference = values - start
        check_finite(difference, "top-k")
        (places,) = largest_places(difference[None], self.num_kept(len(values)))
        written = places.numpy().astype(place_dtype(len(values)))
        return np.concatenate([written.view(np.uint8), bytes_of(values[places])])

    def decode(self, data: np.ndarray, start: Tensor) -> Tensor:
        """Return the start, with the values that came in their places."""
        kind, kept = place_dtype(len(start)), self.num_kept(len(start))
        end = kept * kind.itemsize
        places = data[:end].copy().view(kind).astype(np.int64)
        if (places >= len(start)).any() or (np.diff(places) <= 0).any():
            raise ValueError(f"places of its update are not in order, or not below {len(start)}")
        return start.index_put((torch.from_numpy(places),), tensor_of(data[end:], start.dtype))
