"""Why a connection with TLS did not come about, or won't: gRPC's words are not for people, and roots may be none."""

import ssl
from pathlib import Path

from polyfleet.process.config import ConfigError

_MEANINGS = (  # of words that gRPC's message has; the first ones that are there count
    ("certificate has expired", "The certificate of {} has expired, unless this host's clock is wrong: renew it."),
    ("certificate is not yet valid", "The certificate of {} is not valid yet, unless this host's clock is wrong."),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "The certificate of {} is not trusted: name the PEM file of its roots with --ca-file.",
    ),
    ("Hostname Verification Check failed", "The certificate of {} is for other names: dial it by one of those."),
    ("WRONG_VERSION_NUMBER", "{} speaks no TLS: leave out --tls and --ca-file."),
    *(
        (words, "{} speaks no gRPC in the clear: if it has TLS, give --ca-file or --tls; else name another address.")
        for words in ("Socket closed", "Failed parsing HTTP/2")
    ),
)


def tls_problem(message: str, address: str) -> str:
    """What to do where TLS, or its absence, kept a caller from `address`, one sentence; empty: neither did."""
    return next((meaning.format(address) for words, meaning in _MEANINGS if words in message), "")


def roots_in(path: Path) -> bytes:
    """PEM roots to trust. Raises ConfigError when the file can't be read, or has none."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
        return path.read_bytes()
    except ssl.SSLError:
        raise ConfigError(f"The file {path} has no certificate in PEM: name that of the roots to trust.") from None
    except OSError as error:
        raise ConfigError(f"The file {path} can't be read: {error.strerror}.") from None
