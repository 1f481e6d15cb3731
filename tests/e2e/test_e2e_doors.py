"""What another process of this machine can do to a running `polyfleet serve` without its token: nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from tests.support.serve_process import ServeProcess, command_line

from polyfleet.v1 import fleet_pb2 as fleet
from polyfleet.v1 import fleet_pb2_grpc, worker_pb2_grpc
from polyfleet.v1 import worker_pb2 as pb
from polyfleet.wire.auth import is_loopback


def refused(call: Callable[[], Any]) -> bool:
    with pytest.raises(grpc.RpcError) as error:
        call()
    return bool(error.value.code() is grpc.StatusCode.UNAUTHENTICATED)


@pytest.mark.parametrize("metadata", [(), (("authorization", "Bearer wrong"),)])
def test_a_stranger_changes_nothing_and_the_model_serves_on(stack: ServeProcess, metadata: Any) -> None:
    (worker,) = stack.ready_workers()
    rogue = fleet.WorkerInfo(
        worker_id="worker-rogue",
        address="127.0.0.1:9",
        deployment=worker["deployment"],
        model=fleet.ModelInfo(name=worker["model"], context_length=8192),
    )
    with grpc.insecure_channel(stack.fleet) as to_fleet, grpc.insecure_channel(worker["address"]) as to_worker:
        door: Any = fleet_pb2_grpc.FleetStub(to_fleet)
        engine: Any = worker_pb2_grpc.WorkerStub(to_worker)
        registration = iter([fleet.RegisterRequest(info=rogue)])
        hello = iter([pb.SessionCommand(hello=pb.Hello(gateway_id="g"))])
        load = pb.LoadRequest(deployment="d", model_name="m", source="/m.gguf")
        drain = fleet.DrainRequest(worker_id=worker["worker_id"])
        wish = fleet.DeployRequest(deployment=fleet.ModelDeployment(name="d", source="/m.gguf"))
        assert refused(lambda: next(door.Register(registration, metadata=metadata)))
        assert refused(lambda: next(door.WatchFleet(fleet.WatchFleetRequest(), metadata=metadata)))
        assert refused(lambda: next(door.GetTokenizer(fleet.GetTokenizerRequest(hash="0"), metadata=metadata)))
        assert refused(lambda: door.ListWorkers(fleet.ListWorkersRequest(), metadata=metadata))
        assert refused(lambda: door.Drain(drain, metadata=metadata))
        assert refused(lambda: door.Deploy(wish, metadata=metadata))
        assert refused(lambda: door.Undeploy(fleet.UndeployRequest(name=worker["deployment"]), metadata=metadata))
        assert refused(lambda: next(engine.Session(hello, metadata=metadata)))
        assert refused(lambda: next(engine.Load(load, metadata=metadata)))
        assert refused(lambda: engine.Unload(pb.UnloadRequest(), metadata=metadata))
        assert refused(lambda: engine.Status(pb.StatusRequest(), metadata=metadata))
        assert refused(lambda: engine.Drain(pb.WorkerDrainRequest(exit=True), metadata=metadata))
    assert [each["worker_id"] for each in stack.ready_workers()] == [worker["worker_id"]]
    answer = stack.polyfleet("generate", "--gateway", stack.grpc, "--max-tokens", "4", stdin="Hello")
    assert answer.returncode == 0, answer.stderr


def test_the_owners_commands_need_no_flag(stack: ServeProcess) -> None:
    listed = stack.polyfleet("workers", "--fleet", stack.fleet)
    assert listed.returncode == 0, listed.stderr
    assert "ready" in listed.stdout


def test_the_token_is_in_a_private_file_and_nowhere_else(stack: ServeProcess) -> None:
    file = stack.state_dir / "fleet.token"
    assert file.stat().st_mode & 0o777 == 0o600
    token = file.read_text().strip()
    assert len(token) == 64
    assert token not in stack.output
    assert not any(token in path.read_text(errors="replace") for path in (stack.state_dir / "logs").iterdir())
    assert not any(token in command_line(process) for process in stack.processes())


def test_nothing_listens_beyond_loopback_and_no_file_is_open_to_others(stack: ServeProcess) -> None:
    listening = {
        f"{connection.laddr.ip}:{connection.laddr.port}" if ":" not in connection.laddr.ip else connection.laddr.ip
        for process in stack.processes()
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert [address for address in listening if not is_loopback(address)] == []
    open_files = [path for path in stack.state_dir.rglob("*") if path.is_file() and path.stat().st_mode & 0o077]
    assert open_files == []
    token = Path.home() / ".ray" / "auth_token"
    assert token.stat().st_mode & 0o077 == 0
