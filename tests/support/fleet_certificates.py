"""Roots of a fleet and certificates of its parts, made when a test asks for them."""

from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


class Roots:
    """One certification authority."""

    def __init__(self, name: str = "roots of a test") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._certificate = self._signed(self._name, self._key, x509.BasicConstraints(ca=True, path_length=None))

    def _signed(
        self,
        name: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        extension: x509.ExtensionType,
        begin: timedelta = -DAY,
        end: timedelta = DAY,
    ) -> x509.Certificate:
        now, serial = datetime.now(timezone.utc), x509.random_serial_number()
        builder = x509.CertificateBuilder(self._name, name, key.public_key(), serial, now + begin, now + end)
        return builder.add_extension(extension, critical=False).sign(self._key, hashes.SHA256())

    def write(
        self,
        folder: Path,
        role: str,
        fleet: str = "f",
        *,
        begin: timedelta = -DAY,
        end: timedelta = DAY,
        name: str = "",
    ) -> Path:
        """A folder with a new certificate of this role, its key, and these roots; files that are there are replaced."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.DNSName(name or f"{role}.{fleet}.polyfleet.internal")])
        certificate = self._signed(x509.Name([]), key, names, begin, end)
        folder.mkdir(parents=True, exist_ok=True)
        pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
        (folder / "tls.crt").write_bytes(certificate.public_bytes(pem))
        (folder / "tls.key").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
        (folder / "ca.crt").write_bytes(self._certificate.public_bytes(pem))
        return folder
