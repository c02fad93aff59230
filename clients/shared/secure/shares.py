"""Shares of secrets: so many of those who hold one find the secret, fewer learn nothing (Shamir, 1979)."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, combinations, islice

from Crypto.Protocol.SecretSharing import Shamir

MOST_TRIES = 64  # to find a secret among shares of which some are wrong


def threshold_of(share: float, holders: int) -> int:
    """Return how many shares find a secret: a share of those who hold one, and always more than half of them.

    With more than half, an edge that asks some clients for the one secret of a client, and others for the other, does
    not get both.

    Parameters
    ----------
    share : float
        Between 0 and 1.
    holders : int
        So many hold one, the owner too.
    """
    return min(holders, max(holders // 2 + 1, math.ceil(share * holders - 1e-9)))


def split(secret: bytes, threshold: int, holders: int) -> list[bytes]:
    """Return a share of a secret of 16 bytes for each holder, in their order."""
    return [share for _, share in Shamir.split(threshold, holders, secret, ssss=False)]


def combined(shares: Mapping[int, bytes], threshold: int, is_right: Callable[[bytes], bool]) -> bytes:
    """Return a secret from shares of it.

    Parameters
    ----------
    shares : Mapping[int, bytes]
        By the place of their holder, from 0. One may be wrong, or a few, as long as there are more than are needed.
    threshold : int
        So many are needed.
    is_right : Callable[[bytes], bool]
        Whether it is the secret.

    Raises
    ------
    ValueError
        If there are too few, or they make no secret that is right.
    """
    if len(shares) < threshold:
        raise ValueError(f"{len(shares)} shares, {threshold} needed")
    pairs: Sequence[tuple[int, bytes]] = [(place + 1, share) for place, share in sorted(shares.items())]
    in_a_row = ((*pairs[i:], *pairs[:i])[:threshold] for i in range(len(pairs)))  # one without any one holder's
    for some in islice(chain(in_a_row, combinations(pairs, threshold)), MOST_TRIES):
        if is_right(secret := Shamir.combine(list(some), ssss=False)):
            return secret
    raise ValueError("shares of a secret do not fit together")
