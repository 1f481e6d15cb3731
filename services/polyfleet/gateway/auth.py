"""Who may call the gateway: holders of the keys in its file, which may change while it runs."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from polyfleet.gateway.errors import Unauthenticated
from polyfleet.process.config import ConfigError
from polyfleet.process.keys import KeysFile, Role, Tenant, find_key, read_keys
from polyfleet.wire.auth import bearer_of, is_loopback
from polyfleet.wire.limits import MAX_PRIORITY

RELOAD_SECONDS = 1.0
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Principal:
    """Who calls. Without keys everybody is the anonymous operator of a loopback gateway."""

    key_id: str
    role: Role
    tenant: str = ""  # empty without keys
    max_priority: int = MAX_PRIORITY


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
        self._path = path
        self._take(read_keys(path) if path else KeysFile(()))
        self._stamp = self._file_stamp()
        self._looked = time.monotonic()

    def _take(self, file: KeysFile) -> None:
        self._file = file
        self._tenants = {each.id: each for each in file.tenants}
        self._num_tenants = len({key.owner for key in file.keys})

    @property
    def tenants(self) -> Mapping[str, Tenant]:
        """The tenants that the file names, by id."""
        return self._tenants

    @property
    def num_tenants(self) -> int:
        """How many tenants have keys."""
        return self._num_tenants

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
        found = find_key(self._file.keys, secret)
        if found is None:
            raise Unauthenticated("The key is not known to this gateway.")
        if found.expired:
            raise Unauthenticated(f"The key {found.id} has expired: ask for a new one.")
        return Principal(found.id, found.role, found.owner, found.max_priority)

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
            self._take(read_keys(self._path))
        except ConfigError as error:
            log.error("The keys read before stay valid. %s", error)
        else:
            log.info("Keys file read again.", extra={"keys": len(self._file.keys)})
