"""API keys as the keys file has them, which gateways and the scheduler read: their sha256 only.

    keys:
      - {id: team-a, hash: <sha256 of the key, 64 hexadecimal digits>, role: tenant, tenant: a}

`tenant` (default: the id) says whom a key belongs to: keys of one tenant share cached prefixes, others never do.

A single round of sha256 is enough for 256 random bits (nothing to guess); it would not be for passwords.
"""

import hmac
from collections.abc import Iterable
from enum import Enum, unique
from hashlib import sha256
from pathlib import Path

import msgspec

from polyfleet.process.config import ConfigError
from polyfleet.process.config_file import reading


@unique
class Role(str, Enum):
    """What a key may do: call models, or also change the fleet."""

    TENANT = "tenant"
    OPERATOR = "operator"


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
    """The keys of a file. Raises ConfigError when it can't be read or holds anything but well-formed keys."""
    with reading("The keys file", path):
        keys = msgspec.yaml.decode(path.read_bytes(), type=KeysFile).keys
    for key in keys:
        if len(key.hash) != 64 or any(digit not in "0123456789abcdef" for digit in key.hash):
            raise ConfigError(f"The keys file {path} is not valid: the hash of key {key.id} is no sha256 in hex.")
    return keys


def hash_of(secret: str) -> str:
    """A key's sha256, as the file has it."""
    return sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def find_key(keys: Iterable[Key], secret: str) -> Key | None:
    """The key that a caller presents; None when it is none of these."""
    digest, found = hash_of(secret), None
    for key in keys:  # all of them, so that time says nothing about which one matched
        if hmac.compare_digest(digest, key.hash):
            found = key
    return found
