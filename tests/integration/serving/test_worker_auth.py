"""Who may call the real worker process: those with the fleet token, on loopback too; without one all of loopback."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.support.running_worker import RunningWorker
from tests.support.session_client import OWN_CONNECTION, SessionClient
from tests.unit.process.test_process_fleet_keys import bearer, write

from polyfleet.v1 import fleet_pb2 as fleet
from polyfleet.v1 import worker_pb2 as pb
from polyfleet.v1 import worker_pb2_grpc

TOKEN = (("authorization", "Bearer right"),)
WRONG = (("authorization", "Bearer righ"),)
Call = Callable[[worker_pb2_grpc.WorkerStub, Any], Any]


async def first_of_load(stub: worker_pb2_grpc.WorkerStub, metadata: Any) -> None:
    await stub.Load(pb.LoadRequest(model_name="m", source="fake:"), metadata=metadata).read()


async def first_of_session(stub: worker_pb2_grpc.WorkerStub, metadata: Any) -> None:
    await stub.Session(metadata=metadata).read()


CALLS: dict[str, Call] = {
    "Session": first_of_session,
    "Load": first_of_load,
    "Unload": lambda stub, metadata: stub.Unload(pb.UnloadRequest(), metadata=metadata),
    "Status": lambda stub, metadata: stub.Status(pb.StatusRequest(), metadata=metadata),
    "Drain": lambda stub, metadata: stub.Drain(pb.WorkerDrainRequest(exit=True), metadata=metadata),
}


def with_token(folder: Path, listen: str) -> RunningWorker:
    secret = folder / "token"
    secret.write_text("right\n")
    where = ("--listen", listen, "--advertise-host", "127.0.0.1")
    return RunningWorker(folder, *where, "--fleet-token-file", str(secret))


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "127.0.0.1:0"])
async def test_every_call_needs_the_token_but_health(tmp_path: Path, listen: str) -> None:
    async with with_token(tmp_path, listen) as worker:
        async with grpc.aio.insecure_channel(worker.address, options=OWN_CONNECTION) as channel:
            stub = worker_pb2_grpc.WorkerStub(channel)
            for name, call in CALLS.items():
                for metadata in ((), WRONG):
                    with pytest.raises(grpc.aio.AioRpcError) as refused:
                        await call(stub, metadata)
                    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED, name
            health = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            assert health.status == health_pb2.HealthCheckResponse.NOT_SERVING
            answer = await stub.Status(pb.StatusRequest(), metadata=TOKEN)
            assert answer.status.state == fleet.WORKER_STATE_STARTING, "no refused call did anything"
        async with SessionClient(worker.address, metadata=TOKEN) as session:
            assert (await session.event()).status.state == fleet.WORKER_STATE_STARTING


async def test_beyond_loopback_a_worker_without_a_token_does_not_start(tmp_path: Path) -> None:
    worker = RunningWorker(tmp_path, "--listen", "0.0.0.0:0")
    await worker.spawn()
    assert await worker.exit_status() == 2
    (line,) = worker.errors.splitlines()
    assert line.startswith("Listening on 0.0.0.0:0 needs a fleet token: give --fleet-token-file")


async def test_an_unreadable_token_file_is_named(tmp_path: Path) -> None:
    worker = RunningWorker(tmp_path, "--fleet-token-file", str(tmp_path / "none"))
    await worker.spawn()
    assert await worker.exit_status() == 2
    (line,) = worker.errors.splitlines()
    assert str(tmp_path / "none") in line


async def test_the_token_file_may_come_from_the_environment(tmp_path: Path) -> None:
    worker = RunningWorker(tmp_path, "--listen", "0.0.0.0:0")
    await worker.spawn({"POLYFLEET_FLEET_TOKEN_FILE": str(tmp_path / "empty")})
    (tmp_path / "empty").touch()
    assert await worker.exit_status() == 2
    assert "token file" in worker.errors


async def test_with_keys_of_roles_each_caller_does_its_own(tmp_path: Path) -> None:
    keys = write(tmp_path / "keys.yaml", *({"id": role, "role": role} for role in ("gateway", "scheduler", "worker")))
    token = tmp_path / "token"
    token.write_text("worker\n")  # what it shows to the scheduler opens nothing here
    flags = ("--fleet-token-file", str(token), "--fleet-keys-file", str(keys))
    async with RunningWorker(tmp_path, *flags) as worker:
        async with grpc.aio.insecure_channel(worker.address, options=OWN_CONNECTION) as channel:
            stub = worker_pb2_grpc.WorkerStub(channel)
            allowed = {"gateway": {"Session"}, "scheduler": {"Status", "Load", "Unload", "Drain"}, "worker": set()}
            for role, names in allowed.items():
                for name in CALLS.keys() - names:
                    with pytest.raises(grpc.aio.AioRpcError) as refused:
                        await CALLS[name](stub, bearer(role))
                    assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED, (role, name)
            await first_of_load(stub, bearer("scheduler"))
        async with SessionClient(worker.address, metadata=bearer("gateway")) as session:
            await session.start(pb.StartSequence(sequence_id="s", prompt_ids=[1], max_tokens=2))
            await session.run_to_end()


async def test_a_keys_file_that_is_none_ends_the_worker_with_the_reason(tmp_path: Path) -> None:
    worker = RunningWorker(tmp_path, "--fleet-keys-file", str(tmp_path / "absent"))
    with pytest.raises(AssertionError):
        await worker.__aenter__()
    assert "The keys file" in worker.errors
