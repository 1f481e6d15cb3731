"""Self-signed certificates for localhost and 127.0.0.1, made when a test asks for one."""

from datetime import datetime, timedelta, timezone
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LONG = timedelta(days=3650)


def write_tls_files(
    folder: Path, lasting: timedelta = LONG, *, age: timedelta = timedelta(), name: str = ""
) -> tuple[Path, Path]:
    """A certificate that is as old as `age` and was made to last so long, and its key, as PEM files in `folder`.

    `name`: the only one that it has, beside no address.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "polyfleet test")])
    made = datetime.now(timezone.utc) - age
    hosts = [x509.DNSName(name)] if name else [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder(issuer, issuer, key.public_key(), x509.random_serial_number(), made, made + lasting)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .sign(key, hashes.SHA256())
    )
    files = folder / "tls.crt", folder / "tls.key"
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, pkcs8, plain))
    return files
