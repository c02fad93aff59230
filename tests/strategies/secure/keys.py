"""Keys of clients in files, as devices have them."""

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PEM = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()


def public(key):
    return key.public_key().public_bytes_raw()


def nodes_with_keys(folder, count):
    """Return the part of so many nodes' configs that names their own keys and all public ones, and write the files."""
    keys = [Ed25519PrivateKey.generate() for _ in range(count)]
    (folder / "known").write_text("\n".join(public(key).hex() for key in keys))
    for i, key in enumerate(keys):
        (folder / f"{i}.pem").write_bytes(key.private_bytes(*PEM))
    return [{"secure-key": str(folder / f"{i}.pem"), "secure-keys": str(folder / "known")} for i in range(count)]
