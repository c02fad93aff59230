"""Masks: unsigned numbers that a stream cipher makes of a key, added modulo 2^32 and 2^64."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

_NO_NONCE = bytes(16)  # a key makes one mask


@dataclass(frozen=True)
class Masked:
    """Numbers whose sums are modulo 2^32, and modulo 2^64; NumPy's unsigned integers wrap around.

    Parameters
    ----------
    values : np.ndarray
        uint32, of shape (N,): fixed-point numbers.
    exact : np.ndarray
        uint64, of shape (M,): few, with more room.
    """

    values: np.ndarray
    exact: np.ndarray

    @classmethod
    def zeros(cls, values: int, exact: int) -> Self:
        """Return so many zeros."""
        return cls(np.zeros(values, np.uint32), np.zeros(exact, np.uint64))

    @classmethod
    def mask(cls, key: bytes, values: int, exact: int) -> Self:
        """Return the mask that a key of 32 bytes makes: the key stream of ChaCha20 (RFC 8439), from its start."""
        size = 4 * values
        stream = Cipher(ChaCha20(key, _NO_NONCE), mode=None).encryptor().update(bytes(size + 8 * exact))
        return cls(np.frombuffer(stream, "<u4", values), np.frombuffer(stream, "<u8", exact, size))

    def add(self, other: "Masked", sign: int = 1) -> None:
        """Add others, or with a sign of -1 take them away, in place."""
        for own, theirs in ((self.values, other.values), (self.exact, other.exact)):
            if sign > 0:
                np.add(own, theirs, out=own)
            else:
                np.subtract(own, theirs, out=own)
