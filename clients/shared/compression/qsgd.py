"""QSGD (arXiv:1610.02132): updates on a few levels, rounded at random so that their mean is right."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..rounding import check_finite
from .codec import Codec, bytes_of, checked_scales, tensor_of

MOST_LEVELS = 2**15 - 1
MOST_VALUES = 2**20  # of a bucket


@dataclass(frozen=True)
class Qsgd(Codec):
    """The difference on 2s + 1 levels, bucket by bucket: unbiased, with a bounded variance.

    Of a bucket v of d values, ``|v|`` travels in float32, rounded up, and each value as ``sign(v_k) * xi_k``, where
    ``xi_k`` is ``s * |v_k| / |v|`` rounded up or down at random with the right mean. So
    ``E Q(v) = v`` and ``E |Q(v) - v|^2 <= min(d / s^2, sqrt(d) / s) * |v|^2``.

    Every value takes the same number of bits, the least that tell 2s + 1 levels apart, not Elias' code of the paper: so
    all updates of a model have one length, which a receiver knows before it reads one.

    Parameters
    ----------
    levels : int (default: 7)
        The paper's s, from 1 to 32,767. 1, 3, 7, 15, ... use all levels that their bits have but one.
    bucket : int (default: 512)
        Values that share a norm, the paper's d, from 1 to 2^20; an array's last bucket may be smaller.
    """

    levels: int = 7
    bucket: int = 512

    def __post_init__(self) -> None:
        for name, given, most in (("levels", self.levels, MOST_LEVELS), ("bucket", self.bucket, MOST_VALUES)):
            if type(given) is not int or not 1 <= given <= most:
                raise ValueError(f"{name} is {given!r}: it must be a whole number from 1 to {most}")

    @property
    def bits(self) -> int:
        """How many bits a value takes."""
        return (2 * self.levels).bit_length()

    def num_bytes(self, count: int, dtype: torch.dtype) -> int:
        """Return 4 for each bucket, and the bits of all values, in whole bytes."""
        return 4 * self._num_buckets(count) + -(-count * self.bits // 8)

    def encode(self, values: Tensor, start: Tensor, draws: torch.Generator) -> np.ndarray:
        """Return norms and levels."""
        difference = (values - start).double()
        check_finite(difference, "qsgd")
        rows = self._rows(difference)
        exact = torch.linalg.vector_norm(rows, dim=1)
        norms = exact.float()
        # Never below, so that no value is above the highest level.
        norms = torch.where(norms.double() < exact, torch.nextafter(norms, torch.tensor(torch.inf)), norms)
        if not torch.isfinite(norms).all():
            raise ValueError("an update is too long for qsgd, whose norms are float32")
        divisors = torch.where(norms > 0, norms, 1.0).double()[:, None]
        scaled = self.levels * rows / divisors
        lower = scaled.abs().floor()
        up = torch.rand(rows.shape, generator=draws, dtype=torch.float64) < scaled.abs() - lower
        signed = ((lower + up) * scaled.sign()).to(torch.int64).reshape(-1)[: len(values)]
        return np.concatenate([bytes_of(norms), _packed((signed + self.levels).numpy(), self.bits)])

    def decode(self, data: np.ndarray, start: Tensor) -> Tensor:
        """Return the start and the difference."""
        count = len(start)
        end = 4 * self._num_buckets(count)
        norms = checked_scales(tensor_of(data[:end], torch.float32)).double()
        codes = _unpacked(data[end:], count, self.bits)
        if (codes > 2 * self.levels).any():
            raise ValueError(f"a level of its update is above {self.levels}")
        signed = self._rows(torch.from_numpy(codes) - self.levels)
        difference = signed.double() * (norms[:, None] / self.levels)
        return start + difference.reshape(-1)[:count].to(start.dtype)

    def _num_buckets(self, count: int) -> int:
        return -(-count // self.bucket)

    def _rows(self, values: Tensor) -> Tensor:
        """Return values bucket by bucket, the last one filled up with zeros; none is longer than the values are."""
        width = min(self.bucket, len(values))
        padded = values.new_zeros(self._num_buckets(len(values)) * width)
        padded[: len(values)] = values
        return padded.view(-1, width)


def _packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """Return whole numbers with so many bits each, the lowest first."""
    planes = (codes[:, None] >> np.arange(bits)) & 1
    return np.packbits(planes.astype(np.uint8).reshape(-1), bitorder="little")


def _unpacked(data: np.ndarray, count: int, bits: int) -> np.ndarray:
    """Return the whole numbers that `_packed` packed."""
    planes = np.unpackbits(data, count=count * bits, bitorder="little").reshape(count, bits)
    return planes.astype(np.int64) @ (1 << np.arange(bits, dtype=np.int64))
