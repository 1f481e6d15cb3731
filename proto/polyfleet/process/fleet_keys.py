"""Keys of the fleet's own parts: each process presents one of its role, and servers hold the hashes of all.

    polyfleet keys create workers-1 --role worker --deployment small --keys-file fleet-keys.yaml > worker.token

Several keys of one role are valid at once, so that they can be exchanged one process after another. Where no file of
such keys is given, all parts share one fleet token, which may do everything (`polyfleet.wire.auth`).
"""

from pathlib import Path

from polyfleet.process.keys import Key, Role, WatchedKeys
from polyfleet.wire.auth import HEALTH_PREFIX, Forbidden, Metadata, bearer_in

_CALLERS = {
    "Fleet": {
        "Register": {Role.WORKER},
        "WatchFleet": {Role.GATEWAY},
        "GetTokenizer": {Role.GATEWAY},
        "ReportUsage": {Role.GATEWAY},
        "ListWorkers": {Role.GATEWAY, Role.OPERATOR},
        "Drain": {Role.OPERATOR},
        "Deploy": {Role.OPERATOR},
        "Undeploy": {Role.OPERATOR},
        "UndoRollout": {Role.OPERATOR},
        "AddAdapter": {Role.OPERATOR},
        "DropAdapter": {Role.OPERATOR},
        "Usage": {Role.OPERATOR},
        "ListDevices": {Role.OPERATOR},
        "TailLog": {Role.OPERATOR},
        "ListRequests": {Role.OPERATOR},
        "ListKeys": {Role.OPERATOR},
        "CreateKey": {Role.OPERATOR},
        "RevokeKey": {Role.OPERATOR},
        "LimitTenant": {Role.OPERATOR},
        "DescribeOptions": {Role.OPERATOR},
        "CheckModel": {Role.OPERATOR},
        "StartBenchmark": {Role.OPERATOR},
        "GetBenchmark": {Role.OPERATOR},
        "ListBenchmarks": {Role.OPERATOR},
        "CancelBenchmark": {Role.OPERATOR},
    },
    "Worker": {
        "Session": {Role.GATEWAY},
        "Status": {Role.SCHEDULER, Role.OPERATOR},
        "Load": {Role.SCHEDULER},
        "Unload": {Role.SCHEDULER},
        "SetAdapters": {Role.SCHEDULER},
        "TailLog": {Role.SCHEDULER, Role.OPERATOR},
        "Inspect": {Role.SCHEDULER},
        "Drain": {Role.SCHEDULER},
    },
    "Agents": {
        "Join": {Role.WORKER},
        "Carry": {Role.WORKER},
    },
}
CALLERS = {
    f"/polyfleet.v1.{service}/{name}": frozenset(roles)
    for service, calls in _CALLERS.items()
    for name, roles in calls.items()
}
NEEDS_KEY = "This call needs a key of this fleet: send `authorization: Bearer <key>`."


class FleetKeys:
    """The file, which is read again when it changes. Raises ConfigError when it can't be read at first."""

    def __init__(self, path: Path) -> None:
        self._keys = WatchedKeys(path)

    def key_of(self, metadata: Metadata | None) -> Key | None:
        """The key that a call with this metadata presents; None when it is none of these."""
        secret = bearer_in(metadata)
        return self._keys.file.find(secret) if secret else None

    def objection(self, method: str, metadata: Metadata | None) -> str:
        """Why a call of `method` (its full path) is refused, in one sentence; empty when it is welcome."""
        if method.startswith(HEALTH_PREFIX):
            return ""
        key = self.key_of(metadata)
        if key is None:
            return NEEDS_KEY
        if key.expired:
            return f"The key {key.id} has expired: give its process another one."
        roles = CALLERS.get(method, frozenset())
        if key.role in roles:
            return ""
        may = " or ".join(sorted(role.value for role in roles)) or "nobody"
        return Forbidden(f"The key {key.id} is of role {key.role.value}; this call is for: {may}.")
