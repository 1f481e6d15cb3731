"""When a certificate expires: the little of X.509 that the standard library does not tell of one's own files."""

import re
import ssl
from datetime import datetime, timezone
from pathlib import Path

BLOCK = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
CONTEXT_0, UTC_TIME = 0xA0, 0x17


def expiry(path: Path) -> float:
    """The first moment, in seconds since 1970, at which a certificate of this PEM chain is not valid any more.

    Raises ValueError when the file holds no certificate.
    """
    blocks = BLOCK.findall(path.read_text(encoding="ascii", errors="replace"))
    if not blocks:
        raise ValueError(f"{path} holds no certificate")
    return min(not_after(ssl.PEM_cert_to_DER_cert(block)) for block in blocks)


def not_after(der: bytes) -> float:
    """`validity.notAfter` of a DER certificate (RFC 5280, 4.1)."""
    _, certificate, _ = element(der)
    _, fields, _ = element(certificate)  # tbsCertificate
    tag, _, rest = element(fields)
    for _ in range(3 if tag == CONTEXT_0 else 2):  # version where it is given, serialNumber, signature, issuer
        _, _, rest = element(rest)
    _, validity, _ = element(rest)
    _, _, rest = element(validity)  # behind notBefore
    tag, time, _ = element(rest)
    # A two-digit year is 1950 to 2049 there and 1969 to 2068 here; certificates from 2050 on have four digits.
    layout = "%y%m%d%H%M%SZ" if tag == UTC_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(time.decode("ascii"), layout).replace(tzinfo=timezone.utc).timestamp()


def element(der: bytes) -> tuple[int, bytes, bytes]:
    """Tag and content of the first element, and what follows it (X.690, 8.1). Raises ValueError when it is cut off."""
    if len(der) < 2:
        raise ValueError("a certificate ends too early")
    size, begin = der[1], 2
    if size & 0x80:
        begin += size & 0x7F
        size = int.from_bytes(der[2:begin], "big")
    end = begin + size
    if end > len(der):
        raise ValueError("a certificate ends too early")
    return der[0], der[begin:end], der[end:]
