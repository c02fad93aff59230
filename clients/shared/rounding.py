"""Numbers in fewer bits than they are computed in: what streams and compressed updates have in common."""

import numpy as np
import torch
from torch import Tensor


def is_finite(values: Tensor) -> bool:
    """Return whether no number is NaN or Inf; a finite sum says so at once."""
    return bool(torch.isfinite(values.sum()) or torch.isfinite(values).all())


def check_finite(values: Tensor, form: str) -> None:
    """Raise ValueError where another form than the numbers' own would hide that one is NaN or Inf."""
    if not is_finite(values):
        raise ValueError(f"there is NaN or Inf in what is to travel as {form}")


def to_half(values: Tensor, half: torch.dtype) -> Tensor:
    """Return numbers in float16 or bfloat16; those beyond its range become the nearest in it."""
    limit = torch.finfo(half).max
    return values.clamp(-limit, limit).to(half)


def to_int8(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return a float32 scale for each row, and the rows in int8; a value is off by at most 1/254 of its row's largest.

    Parameters
    ----------
    rows : Tensor
        Shape (N, n), n of 1 or more.
    """
    scales = (rows.abs().amax(1) / 127).to(torch.float32)
    # A scale of 0 stands for a row of zeros, or of values too small for float32.
    divisors = torch.where(scales > 0, scales, 1.0).to(rows.dtype)[:, None]
    return scales, (rows / divisors).round().clamp(-127, 127).to(torch.int8)


def from_int8(scales: Tensor, whole: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the rows that `to_int8` made int8."""
    return whole.to(dtype) * scales.to(dtype)[:, None]


def largest_places(rows: Tensor, count: int) -> Tensor:
    """Return the places of so many values of each row, the largest by amount, in the order of the places."""
    return rows.abs().topk(count, sorted=False).indices.sort().values


def place_dtype(count: int) -> np.dtype:
    """Return how the place of one of so many values is written."""
    return np.dtype("<u2" if count <= 2**16 else "<u4")
