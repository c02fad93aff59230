"""Keys of one edge round: what two clients agree on, and what seals a share for one of them.

Elliptic curves, key derivation and ciphers are those of ``cryptography``; all secrets come from the system's entropy.
"""

import secrets
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import load_pem_private_key

SEED_BYTES: Final = 16  # of a secret that is shared: what Shamir's shares of ``pycryptodome`` hold
KEY_BYTES: Final = 32
_NAME = b"espalier secure aggregation 1"
_NO_NONCE = bytes(12)  # a key seals one message


def new_seed() -> bytes:
    """Return a secret of `SEED_BYTES`."""
    return secrets.token_bytes(SEED_BYTES)


def derived(secret: bytes, *purpose: object) -> bytes:
    """Return a key of `KEY_BYTES` for one purpose (HKDF with SHA-256)."""
    info = b"/".join((_NAME, *(str(part).encode() for part in purpose)))
    return HKDF(SHA256(), KEY_BYTES, None, info).derive(secret)


def public_of(seed: bytes) -> bytes:
    """Return the public key (X25519) whose private key follows from a seed."""
    return _private(seed).public_key().public_bytes_raw()


def agreed(seed: bytes, public: bytes, *purpose: object) -> bytes:
    """Return the key that a seed's owner and the owner of a public key have in common, for one purpose.

    Both public keys go into it: several texts are the same point of the curve, so without them a client could show
    another one's key in other words, and would have its masks, too.

    Raises
    ------
    ValueError
        If it is no public key.
    """
    own = _private(seed)
    both = sorted((own.public_key().public_bytes_raw(), public))
    return derived(own.exchange(X25519PublicKey.from_public_bytes(public)), *purpose, *(key.hex() for key in both))


def mask_key(seed: bytes, public: bytes, *sum_of: object) -> bytes:
    """Return what the mask is made of that two clients share, by the seed of one and the public key of the other.

    What both were told of the sum goes into it: where an edge tells them different things, masks do not cancel.
    """
    return agreed(seed, public, "mask", *sum_of)


def self_mask_key(seed: bytes) -> bytes:
    """Return what a client's own mask is made of, by its seed."""
    return derived(seed, "self-mask")


def commitment_to(seed: bytes) -> bytes:
    """Return what shows later that a seed is the one that was meant, and tells nothing of it before."""
    return sha256(_NAME + b"/self-mask/" + seed).digest()


def sealed(key: bytes, text: bytes) -> bytes:
    """Return a text that nobody reads or changes without the key, which seals this one alone (ChaCha20-Poly1305)."""
    return ChaCha20Poly1305(key).encrypt(_NO_NONCE, text, None)


def opened(key: bytes, text: bytes) -> bytes:
    """Return what was `sealed`; ValueError if it was not with this key."""
    try:
        return ChaCha20Poly1305(key).decrypt(_NO_NONCE, text, None)
    except InvalidTag:
        raise ValueError("a share was sealed with another key") from None


def signer_of(pem: bytes) -> Ed25519PrivateKey:
    """Return the private key (Ed25519) in a PEM text; ValueError if there is none."""
    key = load_pem_private_key(pem, None)
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError("it is no Ed25519 key")
    return key


def signature_of(signer: Ed25519PrivateKey, *parts: object) -> bytes:
    """Return a signature under some parts."""
    return signer.sign(_statement(parts))


def is_signed(public: bytes, signature: bytes, *parts: object) -> bool:
    """Return whether a signature is that of a public key's owner, under these parts."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, _statement(parts))
    except (InvalidSignature, ValueError):
        return False
    return True


def _statement(parts: Sequence[object]) -> bytes:
    """Return parts as one text: each with its length, so that no others make the same one."""
    texts = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    return _NAME + b"".join(len(text).to_bytes(8, "little") + text for text in texts)


def _private(seed: bytes) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(derived(seed, "private key"))
