"""A server proves who it is with the certificates, under its own names only."""

import ssl
import stat

import pytest
from certificates import make_certificates, make_device_key
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key


def handshake(certificates, authority, host):
    """Shake hands in memory; ssl.SSLError if the client refuses."""
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(certificates / "server.crt", certificates / "server.key")
    client_context = ssl.create_default_context(cafile=authority)
    client_context.verify_flags |= ssl.VERIFY_X509_STRICT
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(down, up, server_hostname=host)
    server = server_context.wrap_bio(up, down, server_side=True)
    waiting = [client, server]
    for _ in range(10):
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                pass
    assert not waiting


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "cloud.example.org"])
def test_clients_trust_the_server_under_its_names(host, tmp_path):
    make_certificates(tmp_path, ["localhost", "127.0.0.1", "::1", "cloud.example.org"])
    handshake(tmp_path, tmp_path / "ca.crt", host)


def test_no_other_name_and_no_other_authority(tmp_path):
    make_certificates(tmp_path / "a", ["localhost"])
    make_certificates(tmp_path / "b", ["localhost"])
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(tmp_path / "a", tmp_path / "a/ca.crt", "example.org")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path / "a", tmp_path / "b/ca.crt", "localhost")


def test_a_new_server_certificate_keeps_the_authority(tmp_path):
    make_certificates(tmp_path, ["localhost"])
    authority, server = (tmp_path / "ca.crt").read_bytes(), (tmp_path / "server.crt").read_bytes()
    make_certificates(tmp_path, ["example.org"])
    assert (tmp_path / "ca.crt").read_bytes() == authority
    assert (tmp_path / "server.crt").read_bytes() != server
    handshake(tmp_path, tmp_path / "ca.crt", "example.org")


def test_keys_are_the_owners_only(tmp_path):
    make_certificates(tmp_path, ["localhost"])
    public_file = make_device_key(tmp_path / "device-0")
    for name in ("ca.key", "server.key", "device-0"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    private = load_ssh_private_key((tmp_path / "device-0").read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert private.curve.name == "secp384r1"
    assert private.public_key() == load_ssh_public_key(public_file.read_bytes())


def test_bad_input(tmp_path):
    with pytest.raises(ValueError, match=r"^hosts = \[\]: allowed is at least one"):
        make_certificates(tmp_path, [])
    for host in ("cloud.example.org:9092", "https://x", "h\u00f6st", ""):
        with pytest.raises(ValueError, match=f"^host = {host!r}: allowed is the name or IP address of a host, without"):
            make_certificates(tmp_path, ["localhost", host])
    assert not list(tmp_path.iterdir())
    make_certificates(tmp_path / "allowed", ["*.example.org", "edge_1", "cloud.example.org.", "::1", "10.0.0.1"])
    (tmp_path / "ca.crt").write_text("")
    with pytest.raises(ValueError, match="only one of"):
        make_certificates(tmp_path, ["localhost"])
