"""Keys of the fleet's parts: each role's calls, several keys at once, expiry, and files that change."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from polyfleet.process import keys as process_keys
from polyfleet.process.fleet_keys import CALLERS, NEEDS_KEY, FleetKeys
from polyfleet.process.keys import Role
from polyfleet.v1 import fleet_pb2, worker_pb2
from polyfleet.wire.auth import Forbidden

METHODS = [
    f"/{service.full_name}/{method.name}"
    for service in (fleet_pb2.DESCRIPTOR.services_by_name["Fleet"], worker_pb2.DESCRIPTOR.services_by_name["Worker"])
    for method in service.methods
]


def write(path: Path, *entries: Mapping[str, object]) -> Path:
    """Keys whose secrets are their ids."""
    keys = [{"hash": hashlib.sha256(str(each["id"]).encode()).hexdigest(), **each} for each in entries]
    path.write_text(yaml.safe_dump({"keys": keys}))
    return path


def bearer(secret: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {secret}"),)


@pytest.fixture
def all_roles(tmp_path: Path) -> FleetKeys:
    return FleetKeys(write(tmp_path / "keys.yaml", *({"id": role.value, "role": role.value} for role in Role)))


@pytest.mark.parametrize("method", METHODS)
def test_every_call_is_for_some_roles_and_refused_to_all_others(all_roles: FleetKeys, method: str) -> None:
    assert CALLERS[method]
    for role in Role:
        problem = all_roles.objection(method, bearer(role.value))
        assert (problem == "") == (role in CALLERS[method]), role
        if problem:
            assert isinstance(problem, Forbidden)
            assert problem.startswith(f"The key {role.value} is of role {role.value}; this call is for: ")
    for metadata in (None, (), bearer("unknown"), (("authorization", "Basic x"),)):
        assert all_roles.objection(method, metadata) == NEEDS_KEY


def test_methods_that_nobody_knows_are_nobodys_and_health_is_everybodys(all_roles: FleetKeys) -> None:
    assert all_roles.objection("/polyfleet.v1.Fleet/Rename", bearer("operator")).endswith("this call is for: nobody.")
    assert all_roles.objection("/grpc.health.v1.Health/Check", None) == ""


def test_two_keys_of_a_role_are_valid_until_one_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_keys, "RELOAD_SECONDS", 0.0)
    old, new = {"id": "old", "role": "worker"}, {"id": "new", "role": "worker"}
    path = write(tmp_path / "keys.yaml", old)
    keys = FleetKeys(path)
    register = "/polyfleet.v1.Fleet/Register"
    assert keys.objection(register, bearer("new")) == NEEDS_KEY
    write(path, old, new)
    assert [keys.objection(register, bearer(each)) for each in ("old", "new")] == ["", ""]
    path.write_text("nonsense: [")  # what was read before holds
    assert [keys.objection(register, bearer(each)) for each in ("old", "new")] == ["", ""]
    write(path, new)
    assert [keys.objection(register, bearer(each)) for each in ("old", "new")] == [NEEDS_KEY, ""]


def test_an_expired_key_says_so(tmp_path: Path) -> None:
    keys = FleetKeys(write(tmp_path / "k.yaml", {"id": "w", "role": "worker", "expires": "2020-01-01T00:00:00Z"}))
    assert keys.objection("/polyfleet.v1.Fleet/Register", bearer("w")).startswith("The key w has expired")
