"""Fleet's door: the fleet token where there is one, operators' keys for writes, health always."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from polyfleet.process.refusing import RefusingInterceptor
from polyfleet.scheduler.auth import FleetAuth
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.v1 import fleet_pb2_grpc

LIST, DEPLOY, REGISTER = (f"/polyfleet.v1.Fleet/{name}" for name in ("ListWorkers", "Deploy", "Register"))


def bearer(secret: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {secret}"),)


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    hashes = [(sha256(key.encode()).hexdigest(), role) for key, role in (("boss", "operator"), ("user", "tenant"))]
    file = tmp_path / "keys.yaml"
    file.write_text("keys:\n" + "".join(f"- {{id: {role}, hash: {h}, role: {role}}}\n" for h, role in hashes))
    return file


def test_loopback_is_open_without_a_token() -> None:
    assert not FleetAuth("127.0.0.1:1", None).objection(DEPLOY, ())


@pytest.mark.parametrize("bound", ["0.0.0.0:1", "127.0.0.1:1"])
def test_the_token_opens_everything_and_nothing_else_does(bound: str) -> None:
    auth = FleetAuth(bound, "token")
    for method in (LIST, DEPLOY, REGISTER):
        assert not auth.objection(method, bearer("token"))
        assert auth.objection(method, bearer("tokem"))
        assert auth.objection(method, ())


def test_an_operators_key_opens_what_operators_do_alone(keys_file: Path) -> None:
    auth = FleetAuth("0.0.0.0:1", "token", keys_file)
    assert not auth.objection(DEPLOY, bearer("boss"))
    assert auth.objection(DEPLOY, bearer("user"))
    assert not auth.objection(LIST, bearer("boss"))
    assert auth.objection(REGISTER, bearer("boss"))
    assert auth.objection(REGISTER, bearer("boss"))


@pytest.mark.parametrize("content", ["", "keys: 3", "- a", "keys: [1]", "{", "keys: [{role: operator}]"])
def test_a_broken_keys_file_opens_nothing(tmp_path: Path, content: str) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(content)
    assert FleetAuth("0.0.0.0:1", "token", file).objection(DEPLOY, bearer("boss"))


def test_health_is_open_to_probes() -> None:
    assert not FleetAuth("0.0.0.0:1", "token").objection("/grpc.health.v1.Health/Check", ())


class Nothing(fleet_pb2_grpc.FleetServicer):  # type: ignore[misc]
    """Answers two shapes of calls."""

    async def ListWorkers(self, request: pb.ListWorkersRequest, context: Any) -> pb.FleetSnapshot:
        return pb.FleetSnapshot(version=1)

    async def Register(self, requests: Any, context: Any) -> Any:
        yield pb.RegisterResponse(scheduler_epoch="e")


async def test_a_refused_call_ends_unauthenticated_whatever_its_shape() -> None:
    server = grpc.aio.server(interceptors=[RefusingInterceptor(FleetAuth("0.0.0.0:1", "token").objection)])
    fleet_pb2_grpc.add_FleetServicer_to_server(Nothing(), server)
    health_pb2_grpc.add_HealthServicer_to_server(health_pb2_grpc.HealthServicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        fleet = fleet_pb2_grpc.FleetStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await fleet.ListWorkers(pb.ListWorkersRequest())
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await fleet.Register().read()
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
        assert (await fleet.ListWorkers(pb.ListWorkersRequest(), metadata=bearer("token"))).version == 1
        assert (await fleet.Register(metadata=bearer("token")).read()).scheduler_epoch == "e"
        with pytest.raises(grpc.aio.AioRpcError) as unimplemented:
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        assert unimplemented.value.code() == grpc.StatusCode.UNIMPLEMENTED
    await server.stop(0)
