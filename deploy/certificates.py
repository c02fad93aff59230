"""Make the TLS certificates and the device keys that a deployment needs.

``python deploy/certificates.py FOLDER HOST...`` writes ``ca.crt`` and ``ca.key`` (unless they are there) and a
``server.crt`` and ``server.key`` for the host names and IP addresses under which devices reach the SuperLink.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from espalier.app.ground.certificates import certificate_builder, common_name, general_name

AUTHORITY_DAYS = 3650
SERVER_DAYS = 825


def make_certificates(folder: Path, hosts: Sequence[str]) -> None:
    """Write a server's certificate and key, and those of the authority that signs it unless they are there.

    Parameters
    ----------
    folder : Path
        Gets ``ca.crt``, ``ca.key``, ``server.crt`` and ``server.key``; the keys are readable by the owner only.
    hosts : Sequence[str]
        Host names and IP addresses of the server; clients accept the certificate under no other.

    Raises
    ------
    ValueError
        There is no host, one is no name or address, or only one of ``ca.crt`` and ``ca.key`` is there.
    """
    if not hosts:
        raise ValueError("hosts = []: allowed is at least one host name or IP address")
    names = [general_name(host) for host in hosts]
    folder.mkdir(parents=True, exist_ok=True)
    authority_files = [folder / "ca.crt", folder / "ca.key"]
    found = [file.exists() for file in authority_files]
    if any(found) and not all(found):
        raise ValueError(f"{folder}: holds only one of ca.crt and ca.key: allowed are both or neither")
    if not all(found):
        _make_authority(*authority_files)
    _make_server(folder, names)


def make_device_key(file: Path) -> Path:
    """Write a device's key pair; return the public key's file.

    Parameters
    ----------
    file : Path
        Gets the private key (P-384, OpenSSH format), readable by the owner only; the public one gets ``.pub`` added.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    _write_key(file, key, serialization.PrivateFormat.OpenSSH)
    public_file = file.with_name(f"{file.name}.pub")
    public_file.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    )
    return public_file


def _make_authority(certificate_file: Path, key_file: Path) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    name = common_name("Espalier deployment")
    builder = (
        _certificate(name, name, key.public_key(), key, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(authority=True), critical=True)
    )
    _write_key(key_file, key, serialization.PrivateFormat.PKCS8)
    certificate_file.write_bytes(builder.sign(key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM))


def _make_server(folder: Path, names: Sequence[x509.GeneralName]) -> None:
    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    authority_key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), password=None)
    assert isinstance(authority_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP384R1())
    builder = (
        _certificate(common_name("SuperLink"), authority.subject, key.public_key(), authority_key, SERVER_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
    )
    _write_key(folder / "server.key", key, serialization.PrivateFormat.PKCS8)
    certificate = builder.sign(authority_key, hashes.SHA384())
    (folder / "server.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePrivateKey,
    days: int,
) -> x509.CertificateBuilder:
    """Return what the authority's and the server's certificate have in common."""
    return (
        certificate_builder(subject, issuer, public_key, days)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )


def _key_usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write_key(file: Path, key: ec.EllipticCurvePrivateKey, key_format: serialization.PrivateFormat) -> None:
    content = key.private_bytes(serialization.Encoding.PEM, key_format, serialization.NoEncryption())
    file.unlink(missing_ok=True)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
        opened.write(content)


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    try:
        make_certificates(Path(sys.argv[1]), sys.argv[2:])
    except (OSError, ValueError) as error:
        sys.exit(str(error))
