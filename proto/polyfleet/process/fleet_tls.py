"""Certificates by which the parts of a fleet know each other: each names its role and its fleet. Files may be renewed.

A folder has `tls.crt` (the chain), `tls.key` and `ca.crt` (all roots that are trusted), as a Secret of Kubernetes does.
One of the certificate's DNS names says whose it is: `<role>.<fleet>.polyfleet.internal`, with a role of `process.keys`.
Who dials expects the other's name, who is called wants a certificate with a name of the same fleet, and of a role that
may make the call.
"""

import logging
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from polyfleet.process.config import ConfigError
from polyfleet.process.fleet_keys import CALLERS
from polyfleet.process.keys import Role
from polyfleet.process.refusing import refuse_caller
from polyfleet.wire.auth import HEALTH_PREFIX, Forbidden

DOMAIN = ".polyfleet.internal"
FILES = ("tls.crt", "tls.key", "ca.crt")
LOOK_SECONDS = 1.0  # between looks whether the files have changed
ALTERNATIVE_NAMES = "x509_subject_alternative_name"  # gRPC's name for a peer's
_DER, _SPKI = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
log = logging.getLogger(__name__)


class Member(NamedTuple):
    """Whose a certificate is."""

    role: Role
    fleet: str

    @property
    def name(self) -> str:
        """The DNS name that says so."""
        return f"{self.role.value}.{self.fleet}{DOMAIN}"


def member_of(names: Iterable[str]) -> Member | None:
    """Who has a certificate with these names; None: nobody of any fleet."""
    roles = {each.value: each for each in Role}
    for name in names:
        role, _, fleet = name.lower().removesuffix(DOMAIN).partition(".")
        if name.lower().endswith(DOMAIN) and role in roles and fleet:
            return Member(roles[role], fleet)
    return None


class FleetTls:
    """This process's certificate and whom it trusts. New connections use the newest files that belong together; old
    connections go on. Raises ConfigError when those of the start can't be used.
    """

    def __init__(self, folder: str | Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock, self._lock = Path(folder), clock, threading.Lock()
        self._seen = self._files = _read(self._folder)
        self.member = checked(self._files, self._folder)
        self._looked = clock()
        self._dials: tuple[tuple[bytes, bytes, bytes], ssl.SSLContext] | None = None  # made of which files

    def server_credentials(self) -> Any:
        """For a gRPC server, which asks for a certificate of the same roots; looked for at each handshake."""
        return grpc.dynamic_ssl_server_credentials(self._served(), self._served, require_client_authentication=True)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For a channel that is dialled now."""
        chain, key, roots = self._newest()
        return grpc.ssl_channel_credentials(roots, key, chain)

    def channel_options(self, role: Role) -> tuple[tuple[str, Any], ...]:
        """Arguments of a channel to a part of this role: by its name, wherever it runs."""
        return (("grpc.ssl_target_name_override", self.name_of(role)),)

    def name_of(self, role: Role) -> str:
        """By which a part of this role is known."""
        return Member(role, self.member.fleet).name

    def dialling_context(self) -> ssl.SSLContext:
        """For a connection of HTTP/2 that is dialled now. Raises ssl.SSLError while the files are being changed."""
        files = self._newest()
        if self._dials is None or self._dials[0] is not files:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # which asks for the other's certificate and name
            context.load_verify_locations(cadata=files[2].decode())
            chain, key = (self._folder / name for name in FILES[:2])
            context.load_cert_chain(chain, key)
            context.set_alpn_protocols(["h2"])
            self._dials = files, context
        return self._dials[1]

    def objection(self, method: str, peer: Mapping[str, Iterable[bytes]]) -> str:
        """Why a call of `method` (its full path) by the peer of an `auth_context` of gRPC is refused; empty: not."""
        names = [each.decode("latin-1") for each in peer.get(ALTERNATIVE_NAMES, ())]
        member = member_of(names)
        if member is None:
            return f"The caller's certificate names no role of a fleet: it needs a DNS name <role>.<fleet>{DOMAIN}."
        if member.fleet != self.member.fleet:
            return f"The caller's certificate is of the fleet {member.fleet:.80}, not of {self.member.fleet}."
        roles = CALLERS.get(method, frozenset())
        if member.role in roles or method.startswith(HEALTH_PREFIX):
            return ""
        may = " or ".join(sorted(role.value for role in roles)) or "nobody"
        return Forbidden(f"The caller's certificate is of role {member.role.value}; this call is for: {may}.")

    async def admit(self, method: str, context: Any) -> None:
        """End a call that is not welcome; raises, as aborts do."""
        if problem := self.objection(method, context.auth_context()):
            log.warning("A caller was refused: %s", problem, extra={"method": method, "peer": context.peer()})
            await refuse_caller(method, context, problem)

    def _served(self) -> Any:
        chain, key, roots = self._newest()
        return grpc.ssl_server_certificate_configuration([(key, chain)], roots)

    def _newest(self) -> tuple[bytes, bytes, bytes]:
        with self._lock:
            if self._clock() - self._looked >= LOOK_SECONDS:
                self._looked = self._clock()
                self._look()
            return self._files

    def _look(self) -> None:
        """Take the files' contents if they have changed and can be used; else keep what there is."""
        try:
            found = _read(self._folder)
            if found == self._seen:
                return
            self._seen = found
            member = checked(found, self._folder)
            if member != self.member:
                raise ConfigError(f"The certificate in {self._folder} is now {member.name}'s; restart to become that.")
        except ConfigError as error:
            log.warning("The fleet's old certificate is kept: %s", error)
        else:
            self._files = found
            log.info("The fleet's certificate has changed.")


def _read(folder: Path) -> tuple[bytes, bytes, bytes]:
    try:
        chain, key, roots = ((folder / name).read_bytes() for name in FILES)
    except OSError as error:
        raise ConfigError(f"The TLS file {error.filename} can't be read: {error.strerror}.") from None
    return chain, key, roots


def checked(files: tuple[bytes, bytes, bytes], folder: Path) -> Member:
    """Whose certificate it is. Raises ConfigError unless the three belong together and are valid now."""
    chain, key, roots = files
    try:
        certificates, trusted = x509.load_pem_x509_certificates(chain), x509.load_pem_x509_certificates(roots)
        own = serialization.load_pem_private_key(key, None).public_key().public_bytes(_DER, _SPKI)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: it has a password
        raise ConfigError(f"{', '.join(FILES)} in {folder} must be a PEM chain, its key and its roots.") from None
    leaf = certificates[0]
    if leaf.public_key().public_bytes(_DER, _SPKI) != own:
        raise ConfigError(f"{folder}/tls.key is not the key of {folder}/tls.crt.")
    now, first, last = datetime.now(timezone.utc), leaf.not_valid_before_utc, leaf.not_valid_after_utc
    if not first <= now <= last:
        raise ConfigError(
            f"The certificate {folder}/tls.crt is valid from {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC only."
        )
    if not any(_issued(certificates[-1], root) for root in trusted):
        raise ConfigError(
            f"The certificate {folder}/tls.crt is not of the roots in ca.crt: all of a fleet have the same roots."
        )
    member = member_of(_names(leaf))
    if member is None:
        raise ConfigError(f"The certificate {folder}/tls.crt needs a DNS name <role>.<fleet>{DOMAIN}.")
    return member


def _issued(certificate: x509.Certificate, root: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(root)
    except (InvalidSignature, ValueError, TypeError):
        return certificate == root
    return True


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return []
    return names.get_values_for_type(x509.DNSName)
