"""Who may call Fleet: its parts by keys or by the fleet token, operators for some; without either, all of loopback."""

import logging
from pathlib import Path

from polyfleet.process.config import ConfigError
from polyfleet.process.fleet_keys import CALLERS, FleetKeys
from polyfleet.process.keys import Role, read_keys
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.wire.auth import Metadata, bearer_in, fleet_objection

log = logging.getLogger(__name__)


class FleetAuth:
    """`bound` is the address that the server listens on; `keys_file` is the gateway's file of keys, or None.

    `fleet_keys` are those of the fleet's parts; with them no call is welcome for its fleet token.
    """

    def __init__(
        self, bound: str, token: str | None, keys_file: Path | None = None, fleet_keys: FleetKeys | None = None
    ) -> None:
        self._bound, self._token, self._keys_file, self._fleet_keys = bound, token, keys_file, fleet_keys

    def objection(self, method: str, metadata: Metadata | None) -> str:
        """Why a call of `method` with this metadata is refused, in one sentence; empty when it is welcome."""
        if self._fleet_keys:
            problem = self._fleet_keys.objection(method, metadata)
        else:
            problem = fleet_objection(self._bound, self._token, method, metadata)
        operators = Role.OPERATOR in CALLERS.get(method, ())
        return "" if problem and operators and self._is_operator(bearer_in(metadata)) else problem

    def foreign_worker(self, metadata: Metadata | None, info: pb.WorkerInfo, served: str) -> str:
        """Why the worker that calls may not register as this, in one sentence; empty when it may.

        `served` is the model that its deployment serves: a key for some deployments is for their models alone.
        """
        key = self._fleet_keys.key_of(metadata) if self._fleet_keys else None
        if key is None or not key.deployments:
            return ""
        if info.deployment not in key.deployments:
            mine = ", ".join(key.deployments)
            return f"The key {key.id} is for workers of {mine}, not of {info.deployment or 'no deployment'!r:.80}."
        for model in (info.model.name, info.intended_model):
            if model not in ("", served):
                return (
                    f"The key {key.id} is for workers of {info.deployment}, which serves {served}, not {model!r:.80}."
                )
        return ""

    def _is_operator(self, secret: str | None) -> bool:
        """Whether it is an operator's key; none is while the file can't be read, which is logged."""
        if not secret or self._keys_file is None:
            return False
        try:
            key = read_keys(self._keys_file).find(secret)
        except ConfigError as error:
            log.error("Operators' keys are refused. %s", error)
            return False
        return key is not None and key.role is Role.OPERATOR and not key.expired
