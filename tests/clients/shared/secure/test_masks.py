"""Masks are the key stream of ChaCha20; shares of secrets and keys do what they are for."""

from copy import deepcopy

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.clients.shared.secure.keys import (
    agreed,
    commitment_to,
    derived,
    is_signed,
    mask_key,
    new_seed,
    opened,
    public_of,
    sealed,
    signature_of,
)
from espalier.clients.shared.secure.masks import Masked
from espalier.clients.shared.secure.shares import combined, split, threshold_of


def test_a_mask_is_the_key_stream_of_chacha20():
    """RFC 8439, A.1, test vector 1: key, nonce and counter of zeros."""
    stream = bytes.fromhex("76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7")
    mask = Masked.mask(bytes(32), 4, 2)
    assert mask.values.astype("<u4").tobytes() + mask.exact.astype("<u8").tobytes() == stream


@settings(max_examples=10, deadline=None)
@given(key=st.binary(min_size=32, max_size=32), values=st.integers(0, 40), exact=st.integers(1, 5))
def test_a_mask_that_is_added_and_taken_away_leaves_the_bits(key, values, exact):
    start = Masked.mask(bytes(32), values, exact)
    made = deepcopy(start)
    made.add(Masked.mask(key, values, exact))
    assert not np.array_equal(made.exact, start.exact)
    made.add(Masked.mask(key, values, exact), -1)
    assert np.array_equal(made.values, start.values)
    assert np.array_equal(made.exact, start.exact)


def test_two_clients_agree_on_a_key_that_nobody_else_has_and_that_never_repeats():
    a, b, c = (new_seed() for _ in range(3))
    key = agreed(a, public_of(b), "mask")
    assert key == agreed(b, public_of(a), "mask") != agreed(c, public_of(a), "mask")
    assert key != agreed(a, public_of(b), "share")
    assert len({public_of(new_seed()) for _ in range(50)}) == 50
    assert commitment_to(a) not in (commitment_to(b), derived(a, "self-mask"))


def test_a_key_shown_in_other_words_makes_another_mask():
    """X25519 takes no notice of a public key's last bit: the masks of both would be the same, and could cancel."""
    own, public = new_seed(), public_of(new_seed())
    in_other_words = public[:-1] + bytes([public[-1] ^ 0x80])
    assert mask_key(own, public) != mask_key(own, in_other_words)
    assert mask_key(own, public, 8.0, 5, 40, "ab") != mask_key(own, public, 8.0, 5, 41, "ab")
    with pytest.raises(ValueError, match="shared key"):
        mask_key(own, bytes(32))  # of low order: all would have the same mask


def test_a_sealed_share_is_read_with_its_key_alone():
    key = derived(new_seed(), "share")
    text = sealed(key, b"a share")
    assert opened(key, text) == b"a share"
    for wrong in (text[:-1] + bytes([text[-1] ^ 1]), text[1:]):
        with pytest.raises(ValueError, match="another key"):
            opened(key, wrong)
    with pytest.raises(ValueError, match="another key"):
        opened(derived(new_seed(), "share"), text)


def test_a_signature_is_under_its_parts_alone():
    signer = Ed25519PrivateKey.generate()
    public = signer.public_key().public_bytes_raw()
    signature = signature_of(signer, "keys", 1, b"ab", b"c")
    assert is_signed(public, signature, "keys", 1, b"ab", b"c")
    assert not is_signed(public, signature, "keys", 1, b"a", b"bc")
    assert not is_signed(public, signature, "keys", 2, b"ab", b"c")
    assert not is_signed(bytes(31), signature, "keys", 1, b"ab", b"c")


@pytest.mark.parametrize("holders", range(1, 12))
@pytest.mark.parametrize("share", [0.01, 0.6, 1.0])
def test_more_than_half_of_the_holders_are_needed(holders, share):
    needed = threshold_of(share, holders)
    assert holders / 2 < needed <= holders
    assert needed >= share * holders - 1e-6


def test_so_many_shares_find_a_secret_whoever_brings_them_and_fewer_do_not():
    secret = new_seed()
    shares = dict(enumerate(split(secret, 3, 5)))
    for left in ({0, 1, 2}, {1, 3, 4}, {0, 1, 2, 3, 4}):
        assert combined({n: shares[n] for n in left}, 3, secret.__eq__) == secret
    with pytest.raises(ValueError, match="2 shares, 3 needed"):
        combined({0: shares[0], 4: shares[4]}, 3, secret.__eq__)


def test_one_wrong_share_is_found_among_more_than_are_needed():
    secret = new_seed()
    shares = dict(enumerate(split(secret, 3, 5))) | {1: bytes(16)}
    assert combined(shares, 3, secret.__eq__) == secret
    of_many = dict(enumerate(split(secret, 21, 32))) | {0: bytes(16)}
    assert combined(of_many, 21, secret.__eq__) == secret
    with pytest.raises(ValueError, match="do not fit together"):
        combined({n: shares[n] for n in (0, 1, 2)}, 3, secret.__eq__)
