"""Who a client is to other clients: its own key, and theirs, as files that its node's config names."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ..shared.secure.keys import KEY_BYTES, signer_of

OWN_KEY: Final = "secure-key"  # in a node's config: a PEM file with the client's private key (Ed25519)
KNOWN_KEYS: Final = "secure-keys"  # a text file with the public keys of all clients, in hex digits, one a line


@dataclass(frozen=True)
class Identity:
    """A client's key, and the keys of those that it takes for clients.

    Parameters
    ----------
    signer : Ed25519PrivateKey
        Its own.
    known : frozenset[bytes]
        Public keys, its own too.
    """

    signer: Ed25519PrivateKey
    known: frozenset[bytes]

    @property
    def public(self) -> bytes:
        """Its own public key."""
        return self.signer.public_key().public_bytes_raw()


def identity_of(node_config: Mapping[str, Any]) -> Identity | None:
    """Return who a node is; None where its config names no keys.

    Raises
    ------
    ValueError
        If a file can't be read or has no keys, or one of the two is missing.
    """
    own, known = str(node_config.get(OWN_KEY, "")), str(node_config.get(KNOWN_KEYS, ""))
    if not (own or known):
        return None
    if not (own and known):
        raise ValueError(f"its node's config has one of {OWN_KEY} and {KNOWN_KEYS}: it must have both")
    return _identity(own, known)


@lru_cache(maxsize=64)
def _identity(own: str, known: str) -> Identity:
    try:
        signer = signer_of(Path(own).read_bytes())
        keys = [bytes.fromhex(line) for line in Path(known).read_text(encoding="utf-8").split()]
    except (OSError, ValueError) as error:
        raise ValueError(f"the files of {OWN_KEY} and {KNOWN_KEYS} can't be read ({error})") from None
    if any(len(key) != KEY_BYTES for key in keys):
        raise ValueError(f"{KNOWN_KEYS} = {known!r}: a public key has {2 * KEY_BYTES} hex digits")
    identity = Identity(signer, frozenset(keys))
    if identity.public not in identity.known:
        raise ValueError(f"{KNOWN_KEYS} = {known!r} has not the client's own key")
    return identity
