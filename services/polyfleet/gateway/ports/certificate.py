"""The certificate of callers' ports: read at the start and whenever its files change, as cert-manager renews them."""

import logging
import ssl
from pathlib import Path

from cryptography import x509

from polyfleet.process.config import ConfigError

log = logging.getLogger(__name__)


class ServedCertificate:
    """A PEM chain and its key. New connections get the newest pair that belongs together; old ones go on.

    Raises ConfigError when the first pair can't be used.
    """

    def __init__(self, chain: str, key: str) -> None:
        self._chain, self._key = Path(chain), Path(key)
        self._seen = self._read()
        self._contexts: list[ssl.SSLContext] = []
        self._take()

    @property
    def expiry(self) -> float:
        """The first moment, in seconds since 1970, at which a certificate of the chain is not valid any more."""
        return min(each.not_valid_after_utc.timestamp() for each in self._certificates)

    def refresh(self) -> None:
        """Take the files' pair if it has changed and can be used; else keep what there is."""
        try:
            found = self._read()
            if found == self._seen:
                return
            self._seen = found
            self._take()
        except (ConfigError, ValueError) as error:
            log.warning("The old certificate is kept: %s", error)
        except OSError as error:  # one of the files was replaced between two looks at them
            self._seen = (b"", b"")
            log.warning("The old certificate is kept until the files can be read again: %s", error)
        else:
            log.info("The certificate has changed.")

    def use_in(self, context: ssl.SSLContext) -> None:
        """Keep this context at the newest pair."""
        context.load_cert_chain(self._chain, self._key)
        self._contexts.append(context)

    def _read(self) -> tuple[bytes, bytes]:
        try:
            return self._chain.read_bytes(), self._key.read_bytes()
        except OSError as error:
            raise ConfigError(f"The TLS file {error.filename} can't be read: {error.strerror}.") from None

    def _take(self) -> None:
        check_tls(str(self._chain), str(self._key))
        for context in self._contexts:
            context.load_cert_chain(self._chain, self._key)
        self._certificates = x509.load_pem_x509_certificates(self._seen[0])


def check_tls(cert: str, key: str) -> None:
    """Raise ConfigError unless the two PEM files belong together."""
    for path in (cert, key):
        try:
            open(path, "rb").close()
        except OSError as error:
            raise ConfigError(f"The TLS file {path} can't be read: {error.strerror}.") from None
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except ssl.SSLError as error:
        reason = (error.reason or str(error)).replace("_", " ").lower()
        raise ConfigError(f"The TLS files {cert} and {key} can't be used together: {reason}.") from None
