"""Certificates of a fleet's parts: which are taken, who may call whom with them, and what happens when files change."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.support.fleet_certificates import DAY, Roots

from polyfleet.process.channels import FleetAccess
from polyfleet.process.config import ConfigError
from polyfleet.process.decoding import DecodeInterceptor
from polyfleet.process.fleet_tls import FleetTls
from polyfleet.process.keys import Role
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.v1 import fleet_pb2_grpc
from polyfleet.wire.auth import Forbidden

DEPLOY, REGISTER = "/polyfleet.v1.Fleet/Deploy", "/polyfleet.v1.Fleet/Register"


@pytest.fixture(scope="module")
def roots() -> Roots:
    return Roots()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"end": -timedelta(hours=1)}, "is valid from"),
        ({"begin": timedelta(hours=1)}, "is valid from"),
        ({"name": "worker.example"}, r"needs a DNS name <role>\.<fleet>\.polyfleet\.internal"),
        ({"name": "cook.f.polyfleet.internal"}, "needs a DNS name"),
        ({"name": "worker.polyfleet.internal"}, "needs a DNS name"),
    ],
)
def test_a_certificate_that_nobody_would_take_is_refused_at_the_start(
    tmp_path: Path, roots: Roots, change: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        FleetTls(roots.write(tmp_path, "worker", **change))


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path, roots: Roots) -> None:
    folder, other = roots.write(tmp_path / "a", "worker"), Roots().write(tmp_path / "b", "worker")
    for name, problem in (("tls.key", "is not the key of"), ("ca.crt", "is not of the roots")):
        kept = (folder / name).read_bytes()
        (folder / name).write_bytes((other / name).read_bytes())
        with pytest.raises(ConfigError, match=problem):
            FleetTls(folder)
        (folder / name).write_bytes(kept)
    (folder / "ca.crt").write_text("no certificate")
    with pytest.raises(ConfigError, match="must be a PEM chain"):
        FleetTls(folder)
    (folder / "ca.crt").unlink()
    with pytest.raises(ConfigError, match=r"ca\.crt can't be read: No such file"):
        FleetTls(folder)


def test_a_role_may_call_what_is_for_it_in_its_own_fleet(tmp_path: Path, roots: Roots) -> None:
    tls = FleetTls(roots.write(tmp_path, "scheduler"))

    def objection(name: str, method: str = REGISTER) -> str:
        return tls.objection(method, {"x509_subject_alternative_name": [b"localhost", name.encode()]})

    assert objection("worker.f.polyfleet.internal") == ""
    assert objection("operator.f.polyfleet.internal", DEPLOY) == ""
    assert objection("tenant.f.polyfleet.internal", "/grpc.health.v1.Health/Check") == ""
    refused = objection("worker.f.polyfleet.internal", DEPLOY)
    assert isinstance(refused, Forbidden)
    assert refused == "The caller's certificate is of role worker; this call is for: operator."
    assert objection("worker.g.polyfleet.internal") == "The caller's certificate is of the fleet g, not of f."
    assert "names no role" in objection("worker.example")
    assert "names no role" in tls.objection(REGISTER, {})


def test_a_renewed_certificate_is_taken_and_a_bad_one_is_not(
    tmp_path: Path, roots: Roots, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    tls = FleetTls(roots.write(tmp_path, "worker"), clock=lambda: now[0])
    first = tls._newest()
    roots.write(tmp_path, "worker")
    assert tls._newest() == first  # not looked at yet
    now[0] += 1
    assert (second := tls._newest()) != first
    for change in ({"end": -DAY / 2}, {"role": "gateway"}, {"fleet": "g"}):
        roots.write(tmp_path, **{"role": "worker", **change})  # type: ignore[arg-type]
        now[0] += 1
        assert tls._newest() == second
    assert [each.levelno for each in caplog.records].count(logging.WARNING) == 3
    now[0] += 1
    assert tls._newest() == second  # which is not said again
    assert [each.levelno for each in caplog.records].count(logging.WARNING) == 3


class Fleet(fleet_pb2_grpc.FleetServicer):  # type: ignore[misc]
    async def Deploy(self, request: pb.DeployRequest, context: Any) -> pb.DeployResponse:
        return pb.DeployResponse(deployment=request.deployment)

    async def WatchFleet(self, request: pb.WatchFleetRequest, context: Any) -> AsyncIterator[pb.FleetSnapshot]:
        for version in range(1000):
            yield pb.FleetSnapshot(version=version)
            await asyncio.sleep(0.01)


@asynccontextmanager
async def serving(tls: FleetTls) -> AsyncIterator[str]:
    server: Any = grpc.aio.server(interceptors=[DecodeInterceptor(admit=tls.admit)])
    fleet_pb2_grpc.add_FleetServicer_to_server(Fleet(), server)
    port = server.add_secure_port("127.0.0.1:0", tls.server_credentials())
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def deployed(access: FleetAccess, address: str, role: Role = Role.SCHEDULER) -> str:
    """How a call to a part of this role ends."""
    async with access.channel(address, role) as channel:
        try:
            await fleet_pb2_grpc.FleetStub(channel).Deploy(pb.DeployRequest(), timeout=5)
        except grpc.aio.AioRpcError as error:
            return error.code().name
    return "OK"


async def test_only_the_fleets_own_get_in_and_only_where_they_belong(tmp_path: Path, roots: Roots) -> None:
    def of(role: str, fleet: str = "f", made: Roots = roots) -> FleetAccess:
        return FleetAccess(tls=FleetTls(made.write(tmp_path / f"{role}-{fleet}-{id(made)}", role, fleet)))

    stranger = of("operator", made=Roots())
    scheduler = of("scheduler").tls
    assert scheduler is not None
    async with serving(scheduler) as address:
        assert await deployed(of("operator"), address) == "OK"
        assert await deployed(of("worker"), address) == "PERMISSION_DENIED"
        assert await deployed(of("operator", "g"), address) == "UNAVAILABLE"  # its own client refuses the server's name
        assert await deployed(of("operator"), address, Role.WORKER) == "UNAVAILABLE"  # which is none
        assert await deployed(stranger, address) == "UNAVAILABLE"
        assert await deployed(FleetAccess(), address) == "UNAVAILABLE"


async def test_certificates_are_renewed_below_streams_that_go_on(tmp_path: Path, roots: Roots) -> None:
    tls = FleetTls(roots.write(tmp_path / "s", "scheduler"), clock=count(step=2).__next__)
    gateway = FleetAccess(tls=FleetTls(roots.write(tmp_path / "g", "gateway")))
    new = Roots()
    async with serving(tls) as address, gateway.channel(address, Role.SCHEDULER) as channel:
        watch = fleet_pb2_grpc.FleetStub(channel).WatchFleet(pb.WatchFleetRequest())
        assert (await watch.read()).version == 0
        new.write(tmp_path / "s", "scheduler")  # of other roots altogether
        operator = FleetAccess(tls=FleetTls(new.write(tmp_path / "o", "operator")))
        assert await deployed(operator, address) == "OK"
        assert await deployed(gateway, address) == "UNAVAILABLE"
        assert (await watch.read()).version == 1
