"""Who may call the gateway: holders of the keys in its file, which may change while it runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from polyfleet.gateway.errors import PermissionDenied, Unauthenticated
from polyfleet.process.config import ConfigError
from polyfleet.process.keys import PARTS, Role, Tenant, WatchedKeys
from polyfleet.wire.auth import bearer_of, is_loopback
from polyfleet.wire.limits import MAX_PRIORITY


@dataclass(frozen=True, slots=True)
class Principal:
    """Who calls. Without keys everybody is the anonymous operator of a loopback gateway."""

    key_id: str
    role: Role
    tenant: str = ""  # empty without keys
    max_priority: int = MAX_PRIORITY


UNKNOWN_KEY = "The key is not known to this gateway."
ANONYMOUS = Principal("", Role.OPERATOR)


def check_listen(address: str, keys_file: Path | None, *, insecure: bool) -> None:
    """Raise ConfigError when the gateway would open `address` beyond loopback to callers without keys."""
    if keys_file is None and not insecure and not is_loopback(address):
        raise ConfigError(
            f"Listening on {address} without keys would let anybody in: give --keys-file, listen on 127.0.0.1, "
            "or say --insecure-no-keys."
        )


class Authenticator:
    """Checks keys against the file, which is read again when it changes. `path` None: no keys are asked for."""

    def __init__(self, path: Path | None) -> None:
        self._keys = WatchedKeys(path) if path else None

    @property
    def required(self) -> bool:
        """Whether callers need a key."""
        return self._keys is not None

    @property
    def tenants(self) -> Mapping[str, Tenant]:
        """The tenants that the file names, by id."""
        return self._keys.file.by_tenant if self._keys else {}

    @property
    def num_tenants(self) -> int:
        """How many tenants have keys."""
        return len(self._keys.file.owners) if self._keys else 0

    def check(self, authorization: str | bytes | None) -> Principal:
        """Who presents this `Authorization` header. Raises Unauthenticated and PermissionDenied."""
        if self._keys is None:
            return ANONYMOUS
        secret = bearer_of(authorization)
        if not secret:
            raise Unauthenticated("This gateway needs a key: send `Authorization: Bearer <key>`.")
        found = self._keys.file.find(secret)
        if found is None:
            raise Unauthenticated(UNKNOWN_KEY)
        if found.expired:
            raise Unauthenticated(f"The key {found.id} has expired: ask for a new one.")
        if found.role in PARTS:
            raise PermissionDenied(f"The key {found.id} is a {found.role.value}'s, which calls no models.")
        return Principal(found.id, found.role, found.owner, found.max_priority)
