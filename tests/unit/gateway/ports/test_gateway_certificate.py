"""The served certificate: its expiry, its renewal, and files that can't be used."""

import logging
import ssl
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from tests.support.tls_files import write_tls_files

from polyfleet.gateway.ports.certificate import ServedCertificate
from polyfleet.process.config import ConfigError


def end_of(chain: Path) -> float:
    """The last certificate's end."""
    return x509.load_pem_x509_certificates(chain.read_bytes())[-1].not_valid_after_utc.timestamp()


def test_a_chain_expires_with_its_first(tmp_path: Path) -> None:
    (tmp_path / "short").mkdir()
    short, _ = write_tls_files(tmp_path / "short", timedelta(days=1))
    chain, key = write_tls_files(tmp_path)
    assert ServedCertificate(str(chain), str(key)).expiry == end_of(chain)
    chain.write_bytes(chain.read_bytes() + short.read_bytes())
    assert ServedCertificate(str(chain), str(key)).expiry == end_of(short)


def test_a_renewed_pair_is_taken(tmp_path: Path) -> None:
    chain, key = write_tls_files(tmp_path, timedelta(days=1))
    certificate = ServedCertificate(str(chain), str(key))
    certificate.use_in(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    write_tls_files(tmp_path, timedelta(days=90))
    certificate.refresh()
    assert certificate.expiry == end_of(chain)


@pytest.mark.parametrize("change", ["chain alone", "garbage", "gone"])
def test_a_pair_of_no_use_leaves_the_old_one(tmp_path: Path, change: str, caplog: pytest.LogCaptureFixture) -> None:
    chain, key = write_tls_files(tmp_path, timedelta(days=1))
    certificate = ServedCertificate(str(chain), str(key))
    old, old_key = certificate.expiry, key.read_bytes()
    if change == "chain alone":
        write_tls_files(tmp_path)
        key.write_bytes(old_key)
    elif change == "garbage":
        chain.write_text("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n")
    else:
        chain.unlink()
    with caplog.at_level(logging.WARNING):
        certificate.refresh()
    assert certificate.expiry == old
    assert caplog.messages[0].startswith("The old certificate is kept: The TLS file")
    write_tls_files(tmp_path, timedelta(days=90))
    certificate.refresh()
    assert certificate.expiry == end_of(chain)


def test_a_pair_that_is_replaced_while_it_is_read_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain, key = write_tls_files(tmp_path, timedelta(days=1))
    certificate = ServedCertificate(str(chain), str(key))
    write_tls_files(tmp_path, timedelta(days=90))
    old = certificate.expiry
    with monkeypatch.context() as replaced:

        def mismatch(*_: str) -> None:
            raise ssl.SSLError(1, "key values mismatch")

        replaced.setattr("polyfleet.gateway.ports.certificate.check_tls", mismatch)
        certificate.refresh()
        assert certificate.expiry == old
    certificate.refresh()
    assert certificate.expiry == end_of(chain)


def test_the_first_pair_must_be_good(tmp_path: Path) -> None:
    chain, key = write_tls_files(tmp_path)
    chain.write_text("")
    with pytest.raises(ConfigError, match="can't be used together"):
        ServedCertificate(str(chain), str(key))
