"""API keys as the keys file has them, which gateways and the scheduler read: their sha256 only.

    keys:
      - {id: team-a, hash: <sha256 of the key, 64 hexadecimal digits>, role: tenant, tenant: a, max_priority: 0,
         expires: 2027-01-31T00:00:00Z}
    tenants:
      - {id: a, weight: 2, tokens_per_minute: 200000, max_concurrent: 64}

`tenant` (default: the id) says whom a key belongs to: keys of one tenant share cached prefixes, others never do.
`tenants` says what some of them may use; those that it does not name have weight 1 and no quotas.

A single round of sha256 is enough for 256 random bits (nothing to guess); it would not be for passwords.
"""

import logging
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from enum import Enum, unique
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from polyfleet.process.config import ConfigError
from polyfleet.process.config_file import reading
from polyfleet.wire.limits import MAX_PRIORITY

RELOAD_SECONDS = 1.0
log = logging.getLogger(__name__)
Priority = Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]


@unique
class Role(str, Enum):
    """What a key may do: call models, or also change the fleet; or be a part of the fleet, see `process.fleet_keys`."""

    TENANT = "tenant"
    OPERATOR = "operator"
    WORKER = "worker"
    GATEWAY = "gateway"
    SCHEDULER = "scheduler"


PARTS = frozenset({Role.WORKER, Role.GATEWAY, Role.SCHEDULER})


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One entry of the keys file."""

    id: str
    hash: str
    role: Role = Role.TENANT
    tenant: str = ""  # empty: a tenant of its own, named as its id
    max_priority: Priority = MAX_PRIORITY  # the highest that its requests may ask for
    expires: Annotated[datetime, Meta(tz=True)] | None = None
    deployments: tuple[str, ...] = ()  # a worker's: those that it may register with; none named: any

    @property
    def owner(self) -> str:
        """The tenant that it belongs to."""
        return self.tenant or self.id

    @property
    def expired(self) -> bool:
        """Whether its time is over."""
        return self.expires is not None and datetime.now(timezone.utc) >= self.expires


class Tenant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a tenant may use of the whole fleet. 0: no quota."""

    id: str
    weight: Annotated[float, Meta(ge=0.01, le=1000)] = 1.0  # of its share where the fleet is short
    tokens_per_minute: Annotated[int, Meta(ge=0, le=2**53)] = 0  # of prompts, but for cached ones, and of answers
    max_concurrent: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0  # requests that run or wait at once


class KeysFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, dict=True):
    """The whole file."""

    keys: tuple[Key, ...]
    tenants: tuple[Tenant, ...] = ()

    @cached_property
    def by_tenant(self) -> Mapping[str, Tenant]:
        """The tenants that are named, by id."""
        return {each.id: each for each in self.tenants}

    @cached_property
    def owners(self) -> frozenset[str]:
        """Every tenant that has a key."""
        return frozenset(key.owner for key in self.keys)

    @cached_property
    def _by_hash(self) -> Mapping[str, Key]:
        return {each.hash: each for each in self.keys}

    def find(self, secret: str) -> Key | None:
        """The key that a caller presents; None when it is none of these.

        Looking up a digest tells a caller nothing by its time: what a guess is hashed to, nobody can choose.
        """
        return self._by_hash.get(hash_of(secret))


def read_keys(path: Path) -> KeysFile:
    """What a file says. Raises ConfigError when it can't be read or holds anything that is not well formed."""
    with reading("The keys file", path):
        found = msgspec.convert(msgspec.yaml.decode(path.read_bytes()), KeysFile)  # times may be quoted
    if problem := _problem(found):
        raise ConfigError(f"The keys file {path} is not valid: {problem}.")
    return found


def _problem(found: KeysFile) -> str:
    """What is wrong with it beyond its form."""
    for key in found.keys:
        if len(key.hash) != 64 or any(digit not in "0123456789abcdef" for digit in key.hash):
            return f"the hash of key {key.id} is no sha256 in hex"
    named = set[str]()
    for tenant in found.tenants:
        if tenant.id in named:
            return f"tenant {tenant.id} is named twice"
        if tenant.id not in found.owners:
            return f"no key belongs to tenant {tenant.id}"
        named.add(tenant.id)
    return ""


class WatchedKeys:
    """A keys file that may change while it is used: it is looked at again after RELOAD_SECONDS.

    One that can't be read or is not valid any more is logged, and what it said before holds.
    """

    def __init__(self, path: Path) -> None:
        """Raises ConfigError."""
        self._path = path
        self._file = read_keys(path)
        self._stamp = self._file_stamp()
        self._looked = time.monotonic()

    @property
    def file(self) -> KeysFile:
        """What it says now."""
        now = time.monotonic()
        if now - self._looked >= RELOAD_SECONDS:
            self._looked = now
            if (stamp := self._file_stamp()) != self._stamp:
                self._stamp = stamp
                self._read_again()
        return self._file

    def _file_stamp(self) -> tuple[int, int]:
        try:
            status = self._path.stat()
        except OSError:
            return 0, 0
        return status.st_mtime_ns, status.st_size

    def _read_again(self) -> None:
        try:
            self._file = read_keys(self._path)
        except ConfigError as error:
            log.error("The keys read before stay valid. %s", error)
        else:
            log.info("Keys file read again.", extra={"keys": len(self._file.keys)})


def hash_of(secret: str) -> str:
    """A key's sha256, as the file has it."""
    return sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
