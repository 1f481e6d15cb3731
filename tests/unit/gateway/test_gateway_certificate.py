"""The expiry of certificates: openssl's own word on them, chains, and files that hold none."""

import ssl
from base64 import b64decode
from datetime import datetime, timezone
from pathlib import Path

import pytest
from tests.support.tls_files import CERTIFICATE, write_tls_files

from polyfleet.gateway.certificate import element, expiry

# `openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN=short`, whose
# `openssl x509 -enddate` is SHORT_END: a two-digit year. The other certificate's has four digits.
SHORT = (
    "MIIBdTCCARugAwIBAgIUP/ZjOVumtSao3vlBQXvLSFZcjOcwCgYIKoZIzj0EAwIwEDEOMAwGA1UEAwwFc2hvcnQwHhcNMjYxMTI4MDMzNzMzWh"
    "cNMjYxMjI4MDMzNzMzWjAQMQ4wDAYDVQQDDAVzaG9ydDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABJcFh9uXpVZ2dIBg5b6MKLd+VTJJtGNR"
    "wkzg/V57vgCWWtTU6SN/lVLaOWWdO18X1Mts9ZWPr7or/rEprpGeHG6jUzBRMB0GA1UdDgQWBBRga0zfrZCpneEPcvL0AxuZ4/mk2zAfBgNVHS"
    "MEGDAWgBRga0zfrZCpneEPcvL0AxuZ4/mk2zAPBgNVHRMBAf8EBTADAQH/MAoGCCqGSM49BAMCA0gAMEUCIC158ZrcBD7JfDFD1MAiZGPhjUWY"
    "ujsNxjkpMH2m2ki5AiEA2F4gCRdgj3ytInUy4ZW3tFunkBA7GCb7tbTPSd/Iw1A="
)
SHORT_END = datetime(2026, 12, 28, 3, 37, 33, tzinfo=timezone.utc)
LONG_END = datetime(2126, 11, 4, 0, 25, 22, tzinfo=timezone.utc)


def pem(*certificates: str) -> str:
    return "".join(ssl.DER_cert_to_PEM_cert(b64decode(each)) for each in certificates)


def test_both_ways_to_write_a_time_are_read(tmp_path: Path) -> None:
    certificate, _ = write_tls_files(tmp_path)
    assert expiry(certificate) == LONG_END.timestamp()
    certificate.write_text(pem(SHORT))
    assert expiry(certificate) == SHORT_END.timestamp()


def test_a_chain_expires_with_its_first(tmp_path: Path) -> None:
    (tmp_path / "chain").write_text("a comment\n" + pem(CERTIFICATE, SHORT))
    assert expiry(tmp_path / "chain") == SHORT_END.timestamp()


@pytest.mark.parametrize("text", ["", "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"])
def test_a_file_without_a_whole_certificate_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "broken").write_text(text)
    with pytest.raises(ValueError, match=r"no certificate|too early"):
        expiry(tmp_path / "broken")


def test_elements_follow_each_other() -> None:
    assert element(b"\x02\x01\x07\x05\x00") == (2, b"\x07", b"\x05\x00")
    assert element(b"\x04\x81\x80" + b"x" * 128) == (4, b"x" * 128, b"")
