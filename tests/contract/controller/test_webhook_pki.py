"""Certificates that are made, against OpenSSL as clients use it."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dra_driver.controller.webhook_objects import serving_file
from dra_driver.controller.webhook_part import dns_names
from dra_driver.controller.webhook_pki import CertificateReader, make_pair
from dra_driver.controller.webhook_plan import Life, Pair

NAMES = dns_names("dra-driver-webhook", "dra-driver")
NOW = datetime.now(UTC).replace(microsecond=0)
READER = CertificateReader(NAMES)
DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def pair() -> Pair:
    return make_pair(NAMES, NOW, 90 * DAY)


def shaken(pair: Pair, folder: Path, ca: bytes, name: str) -> None:
    """A TLS handshake. Raises ssl.SSLError."""
    path = folder / "serving.pem"
    path.write_bytes(serving_file(pair, Life(begin=NOW, end=NOW)))
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cadata=ca.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    server.load_cert_chain(path)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(to_client, to_server, server_hostname=name), server.wrap_bio(to_server, to_client, True)]
    for _ in range(6):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue


@pytest.mark.parametrize("name", NAMES)
def test_clients_trust_it_for_the_names_of_the_service(pair: Pair, tmp_path: Path, name: str) -> None:
    shaken(pair, tmp_path, pair.ca, name)


def test_clients_trust_it_with_several_cas_in_the_bundle(pair: Pair, tmp_path: Path) -> None:
    shaken(pair, tmp_path, make_pair(NAMES, NOW, DAY).ca + pair.ca, NAMES[0])


@pytest.mark.parametrize("case", ["name", "ca", "expired"])
def test_clients_trust_nothing_else(pair: Pair, tmp_path: Path, case: str) -> None:
    served = make_pair(NAMES, NOW - 3 * DAY, DAY) if case == "expired" else pair
    ca = make_pair(NAMES, NOW, DAY).ca if case == "ca" else served.ca
    with pytest.raises(ssl.SSLError):
        shaken(served, tmp_path, ca, "other.example" if case == "name" else NAMES[0])


def test_its_life_begins_an_hour_earlier_for_clocks_that_differ(pair: Pair) -> None:
    assert READER.life(pair) == Life(begin=NOW - timedelta(hours=1), end=NOW + 90 * DAY)


def test_what_does_not_fit_is_never_good(pair: Pair) -> None:
    other = make_pair(["other"], NOW, DAY)
    assert READER.life(other) == "it is not for dra-driver-webhook"
    mixed = [
        Pair(certificate=pair.certificate, key=other.key, ca=pair.ca),
        Pair(certificate=pair.certificate, key=pair.key, ca=other.ca),
        Pair(certificate=b"damaged", key=pair.key, ca=pair.ca),
        Pair(certificate=pair.certificate, key=b"damaged", ca=pair.ca),
    ]
    said = [READER.life(each) for each in mixed]
    assert said[0] == "its key is that of another certificate"
    assert all(isinstance(each, str) and each.startswith("it cannot be read") for each in said[1:])


def test_a_bundle_takes_certificates_alone(pair: Pair) -> None:
    assert READER.is_certificate(pair.ca)
    assert [READER.is_certificate(odd) for odd in (b"", b"x", pair.key, pair.ca + pair.ca)] == [False] * 4
