"""Changes of a keys file: each reads it, changes it and writes it whole, readable by its owner alone."""

import os
import re
import secrets
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path

import msgspec
from msgspec.structs import replace

from polyfleet.process.config import ConfigError
from polyfleet.process.keys import Key, KeysFile, Role, Tenant, hash_of, read_keys
from polyfleet.wire.limits import MAX_PRIORITY, FieldError

KEY_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class KeyTaken(ConfigError):
    """The file has a key of that id already."""


class KeysUnwritable(ConfigError):
    """The file can't be written."""


class KeyAbsent(ConfigError):
    """The file has no such key or tenant."""


def create_key(
    path: Path,
    key_id: str,
    role: Role = Role.TENANT,
    tenant: str = "",
    *,
    max_priority: int = MAX_PRIORITY,
    expires: datetime | None = None,
    deployments: Sequence[str] = (),
) -> str:
    """Add a new key, whose secret is returned and kept nowhere; the file is made when there is none.

    Raises FieldError for what no key may be called or have, KeyTaken, KeysUnwritable, ConfigError for a bad file.
    """
    for field, what, name in (("id", "key id", key_id), ("tenant", "tenant", tenant or key_id)):
        if not KEY_ID.fullmatch(name):
            raise FieldError(field, f"{name!r:.80} is no {what}: 1 to 64 of A-Z a-z 0-9 . _ -")
    if deployments and role is not Role.WORKER:
        raise FieldError("deployment", "is for keys of workers")
    if not -MAX_PRIORITY <= max_priority <= MAX_PRIORITY:
        raise FieldError("max_priority", f"must be within {-MAX_PRIORITY} and {MAX_PRIORITY}, not {max_priority}")
    found = read_keys(path) if path.exists() else KeysFile(())
    if any(each.id == key_id for each in found.keys):
        raise KeyTaken(f"{path} has a key {key_id} already: choose another id.")
    secret = f"pf-{secrets.token_hex(32)}"
    key = Key(key_id, hash_of(secret), role, tenant, max_priority, expires, tuple(deployments))
    _write(path, KeysFile((*found.keys, key), found.tenants))
    return secret


def in_days(days: int | None) -> datetime | None:
    """When a key expires that is valid for so many days; None: never."""
    return datetime.now(timezone.utc).replace(microsecond=0) + timedelta(days=days) if days else None


def revoke_key(path: Path, key_id: str) -> None:
    """Remove a key, and the limits of a tenant that has no other. Raises KeyAbsent, KeysUnwritable, ConfigError."""
    found = read_keys(path)
    kept = tuple(key for key in found.keys if key.id != key_id)
    if len(kept) == len(found.keys):
        raise KeyAbsent(f"{path} has no key {key_id}.")
    owners = {key.owner for key in kept}
    _write(path, KeysFile(kept, tuple(each for each in found.tenants if each.id in owners)))


def limit_tenant(
    path: Path,
    tenant: str,
    *,
    weight: float | None = None,
    tokens_per_minute: int | None = None,
    max_concurrent: int | None = None,
) -> Tenant:
    """Say what a tenant may use; None leaves a limit as it is. Gives all of them.

    Raises KeyAbsent for a tenant without a key, KeysUnwritable, and ConfigError for what is no limit or a bad file.
    """
    found = read_keys(path)
    if tenant not in found.owners:
        raise KeyAbsent(f"{path} has no key of tenant {tenant}.")
    before = found.by_tenant.get(tenant, Tenant(tenant))
    given = {"weight": weight, "tokens_per_minute": tokens_per_minute, "max_concurrent": max_concurrent}
    after = replace(before, **{name: value for name, value in given.items() if value is not None})
    others = tuple(each for each in found.tenants if each.id != tenant)
    _write(path, KeysFile(found.keys, (*others, after)))
    return after


def _write(path: Path, file: KeysFile) -> None:
    """The file, whole or not at all. Raises KeysUnwritable, or ConfigError where it would not be valid."""
    document = msgspec.yaml.encode(file)
    draft = path.with_name(path.name + ".new")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(document)
        _check(draft, path)
        draft.replace(path)
    except OSError as error:
        raise KeysUnwritable(f"The keys file {path} can't be written: {error.strerror}.") from None
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def _check(draft: Path, path: Path) -> None:
    try:
        read_keys(draft)
    except ConfigError as error:
        raise ConfigError(str(error).replace(str(draft), str(path))) from None
