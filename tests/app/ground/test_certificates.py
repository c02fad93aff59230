import pytest
from cryptography import x509

from espalier.app.ground.certificates import self_signed


@pytest.mark.parametrize("host", ["127.0.0.1", "a.example", "ab.example", "abc.example"])
def test_all_certificates_for_a_host_have_the_same_length(host):
    certificates = [self_signed(host, days=1)[1] for _ in range(100)]
    assert len({len(certificate) for certificate in certificates}) == 1
    serials = {x509.load_pem_x509_certificate(certificate).serial_number for certificate in certificates}
    assert len(serials) == 100
