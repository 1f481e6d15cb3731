"""API keys: who may call the gateway. Keys are high-entropy random strings; the file holds their sha256 only.

    keys:
      - {id: team-a, hash: <sha256 of the key, 64 hexadecimal digits>, role: tenant, tenant: a}

`tenant` (default: the id) says whom a key belongs to: keys of one tenant share cached prefixes, others never do.

A single round of sha256 is enough for 256 random bits (nothing to guess); it would not be for passwords.
"""

import hashlib
import hmac
import logging
import time
from dataclasses import dataclass
from enum import Enum, unique
from pathlib import Path

import msgspec

from polyfleet.gateway.errors import Unauthenticated
from polyfleet.wire.auth import bearer_of, is_loopback

RELOAD_SECONDS = 1.0
log = logging.getLogger(__name__)


@unique
class Role(str, Enum):
    """What a key may do: call models, or also change the fleet."""

    TENANT = "tenant"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who calls. Without keys everybody is the anonymous operator of a loopback gateway."""

    key_id: str
    role: Role
    tenant: str = ""  # empty without keys


ANONYMOUS = Principal("", Role.OPERATOR)


class KeySetupError(ValueError):
    """The gateway can't start with this keys file or listen address. One sentence for the operator."""


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One entry of the keys file."""

    id: str
    hash: str
    role: Role = Role.TENANT
    tenant: str = ""  # empty: a tenant of its own, named as its id


class KeysFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    keys: tuple[Key, ...]


def read_keys(path: Path) -> tuple[Key, ...]:
    """The keys of a file. Raises KeySetupError when it can't be read or holds anything but well-formed keys."""
    try:
        keys = msgspec.yaml.decode(path.read_bytes(), type=KeysFile).keys
    except OSError as error:
        raise KeySetupError(f"The keys file {path} can't be read: {error.strerror}.") from None
    except msgspec.DecodeError as error:
        raise KeySetupError(f"The keys file {path} is not valid: {error}.") from None
    for key in keys:
        if len(key.hash) != 64 or any(digit not in "0123456789abcdef" for digit in key.hash):
            raise KeySetupError(f"The keys file {path} is not valid: the hash of key {key.id} is no sha256 in hex.")
    return keys


def check_listen(address: str, keys_file: Path | None, *, insecure: bool) -> None:
    """Raise KeySetupError when the gateway would open `address` beyond loopback to callers without keys."""
    if keys_file is None and not insecure and not is_loopback(address):
        raise KeySetupError(
            f"Listening on {address} without keys would let anybody in: give --keys-file, listen on 127.0.0.1, "
            "or say --insecure-no-keys."
        )


class Authenticator:
    """Checks keys against the file, which is read again when it changes. `path` None: no keys are asked for."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._keys = read_keys(path) if path else ()
        self._stamp = self._file_stamp()
        self._looked = time.monotonic()

    @property
    def required(self) -> bool:
        """Whether callers need a key."""
        return self._path is not None

    def check(self, authorization: str | bytes | None) -> Principal:
        """Who presents this `Authorization` header. Raises Unauthenticated."""
        if self._path is None:
            return ANONYMOUS
        self._reload()
        secret = bearer_of(authorization)
        if not secret:
            raise Unauthenticated("This gateway needs a key: send `Authorization: Bearer <key>`.")
        digest = hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
        found = None
        for key in self._keys:  # all of them, so that time says nothing about which one matched
            if hmac.compare_digest(digest, key.hash):
                found = key
        if found is None:
            raise Unauthenticated("The key is not known to this gateway.")
        return Principal(found.id, found.role, found.tenant or found.id)

    def _file_stamp(self) -> tuple[int, int]:
        try:
            status = self._path.stat() if self._path else None
        except OSError:
            status = None
        return (status.st_mtime_ns, status.st_size) if status else (0, 0)

    def _reload(self) -> None:
        now = time.monotonic()
        if self._path is None or now - self._looked < RELOAD_SECONDS:
            return
        self._looked = now
        stamp = self._file_stamp()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._keys = read_keys(self._path)
        except KeySetupError as error:
            log.error("The keys read before stay valid. %s", error)
        else:
            log.info("Keys file read again.", extra={"keys": len(self._keys)})
