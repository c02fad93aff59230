"""TLS certificates: what all of this project's have in common, and the one that a run makes for its streams."""

import datetime
import ipaddress
import re
import secrets

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

HOST = re.compile(r"(\*\.)?\w[\w.-]*", re.ASCII)  # what servers are called, with a star for all hosts of a domain

# Most signatures of P-256 have this length, others one or two bytes more or less.
SIGNATURE_BYTES = 71
# The most that a certificate may have: 20 bytes, of which the highest bit is the sign.
SERIAL_BITS = 159


def self_signed(host: str, days: int) -> tuple[bytes, bytes]:
    """Return a new private key and a server's certificate signed with it, both as PEM.

    All certificates for a host have the same length: clients get them in messages, and the bytes of a run's messages
    depend on nothing but the run.

    Parameters
    ----------
    host : str
        Name or IP address of the server; clients accept the certificate under no other.
    days : int
        How long it is good.

    Raises
    ------
    ValueError
        If that can't be the name of a host.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = common_name("Espalier stream")
    builder = (
        certificate_builder(name, name, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([general_name(host)]), critical=False)
    )
    certificate = builder.sign(key, hashes.SHA256())
    while len(certificate.signature) != SIGNATURE_BYTES:
        certificate = builder.sign(key, hashes.SHA256())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private, certificate.public_bytes(serialization.Encoding.PEM)


def is_valid_for(certificate: x509.Certificate, host: str) -> bool:
    """Return whether clients that reach a server under `host` today accept its certificate."""
    now = datetime.datetime.now(datetime.UTC)
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        return False
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    wanted = general_name(host)
    if isinstance(wanted, x509.IPAddress):
        return wanted in names
    any_below = "*." + host.lower().partition(".")[2]
    return any(name.lower() in (host.lower(), any_below) for name in names.get_values_for_type(x509.DNSName))


def certificate_builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    """Return a certificate to which only its purpose has to be added."""
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(secrets.randbits(SERIAL_BITS - 1) | 1 << SERIAL_BITS - 1)
        # A device's clock may be a little behind.
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def common_name(text: str) -> x509.Name:
    """Return the name of a certificate's subject or issuer."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def general_name(host: str) -> x509.GeneralName:
    """Return a host's name or IP address as certificates hold it; ValueError for what is neither."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not HOST.fullmatch(host):
            allowed = "the name or IP address of a host, without a port"
            raise ValueError(f"host = {host!r}: allowed is {allowed}") from None
        return x509.DNSName(host)
