"""Who may call Fleet: holders of the fleet token, and operators for some calls; without a token, all of loopback."""

import logging
from pathlib import Path

from polyfleet.process.config import ConfigError
from polyfleet.process.keys import Role, find_key, read_keys
from polyfleet.wire.auth import Metadata, bearer_in, fleet_objection

OPERATIONS = tuple(f"/polyfleet.v1.Fleet/{name}" for name in ("Drain", "Deploy", "Undeploy", "Usage"))
log = logging.getLogger(__name__)


class FleetAuth:
    """`bound` is the address that the server listens on; `keys_file` is the gateway's file of keys, or None."""

    def __init__(self, bound: str, token: str | None, keys_file: Path | None = None) -> None:
        self._bound, self._token, self._keys_file = bound, token, keys_file

    def objection(self, method: str, metadata: Metadata | None) -> str:
        """Why a call of `method` with this metadata is refused, in one sentence; empty when it is welcome."""
        problem = fleet_objection(self._bound, self._token, method, metadata)
        welcome = problem and method in OPERATIONS and self._is_operator(bearer_in(metadata))
        return "" if welcome else problem

    def _is_operator(self, secret: str | None) -> bool:
        """Whether it is an operator's key; none is while the file can't be read, which is logged."""
        if not secret or self._keys_file is None:
            return False
        try:
            key = find_key(read_keys(self._keys_file).keys, secret)
        except ConfigError as error:
            log.error("Operators' keys are refused. %s", error)
            return False
        return key is not None and key.role is Role.OPERATOR and not key.expired
