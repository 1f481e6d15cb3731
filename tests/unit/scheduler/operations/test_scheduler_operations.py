"""Devices, logs, requests and keys as operators ask for them, on a scheduler that serves, and by the command line."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner, Result
from tests.support.running_scheduler import Running, refusal, start, stop
from tests.unit.process.test_process_fleet_keys import bearer, write

from polyfleet.cli.main import cli
from polyfleet.process.keys import read_keys
from polyfleet.scheduler.fleet.devices import WorkerDevices, check_devices, fleet_devices
from polyfleet.scheduler.request_log import RequestLog, check_records
from polyfleet.v1 import fleet_pb2, operations_pb2, worker_pb2_grpc
from polyfleet.v1 import operations_pb2 as pb
from polyfleet.wire.limits import MAX_RECORDS, FieldError
from polyfleet.wire.options import OPTIONS


class TalkativeWorker(worker_pb2_grpc.WorkerServicer):  # type: ignore[misc]
    async def TailLog(self, request: pb.TailLogRequest, context: Any) -> pb.TailLogResponse:
        return pb.TailLogResponse(lines=[f'{{"message": "{number}"}}' for number in range(request.lines)])


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    keys = write(tmp_path / "keys.yaml", {"id": "ops", "role": "operator"}, {"id": "team"})
    one = await start(tmp_path, keys_file=str(keys))
    yield one
    await stop(one)


@pytest.fixture
async def talkative() -> AsyncIterator[str]:
    server = grpc.aio.server()
    worker_pb2_grpc.add_WorkerServicer_to_server(TalkativeWorker(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(0)


def device(index: int = 0, **more: Any) -> pb.DeviceState:
    return pb.DeviceState(accelerator="cuda", index=index, health=pb.DEVICE_HEALTH_HEALTHY, **more)


async def registered(running: Running, worker_id: str, address: str, *devices: pb.DeviceState) -> Any:
    """A worker's stream, on which it has told of itself and of its devices."""
    stream = running.fleet.Register()
    info = fleet_pb2.WorkerInfo(worker_id=worker_id, address=address, host="h", accelerator="cuda")
    await stream.write(fleet_pb2.RegisterRequest(info=info))
    await stream.write(fleet_pb2.RegisterRequest(devices=pb.DeviceReport(devices=devices)))
    await stream.read()
    return stream


async def command(running: Running, *arguments: str) -> Result:
    """The command on this scheduler."""
    return await asyncio.to_thread(CliRunner().invoke, cli, [*arguments, "--fleet", running.address])


async def test_devices_are_those_that_workers_told_of(running: Running) -> None:
    state = device(
        1, name="H100", uuid="GPU-1", temperature_celsius=41, memory_used_bytes=2**30, memory_total_bytes=2**31
    )
    for worker_id in ("w-2", "w-1"):
        await registered(running, worker_id, "127.0.0.1:9", state, device(2, uuid="GPU-2"))
    while len((found := await running.fleet.ListDevices(pb.ListDevicesRequest())).devices) < 2:
        await asyncio.sleep(0.01)
    mine = found.devices[0]
    assert (mine.host, mine.state, mine.worker_ids) == ("h", state, ["w-1", "w-2"])
    assert 0 <= mine.age_seconds < 60
    shown = await command(running, "devices")
    assert all(text in shown.stdout for text in ("cuda 1", "1.0 of 2.0 GiB", "41 °C"))
    first, second = json.loads((await command(running, "devices", "--json")).stdout)
    assert (first["state"]["memory_total_bytes"], first["worker_ids"]) == (2**31, ["w-1", "w-2"])
    assert "temperature_celsius" not in second["state"]


def test_two_readings_of_a_device_are_one_and_the_later_holds() -> None:
    def told(worker_id: str, heard: float, *states: pb.DeviceState, host: str = "a") -> WorkerDevices:
        info = fleet_pb2.WorkerInfo(worker_id=worker_id, host=host)
        return WorkerDevices(info, pb.DeviceReport(devices=states), heard)

    reported = [
        told("w-1", 1.0, device(0, pci_bus_id="x", power_watts=1), device(1)),
        told("w-2", 2.0, device(5, pci_bus_id="x", power_watts=2)),
        told("w-3", 0.0, device(0, pci_bus_id="x"), host="b"),
    ]
    found = fleet_devices(reported, 3.0)
    assert [(each.host, each.state.index, list(each.worker_ids), each.age_seconds) for each in found] == [
        ("a", 1, ["w-1"], 2.0),
        ("a", 5, ["w-1", "w-2"], 1.0),
        ("b", 0, ["w-3"], 3.0),
    ]
    with pytest.raises(FieldError, match=r"devices\.devices: must be at most 64"):
        check_devices(pb.DeviceReport(devices=[device()] * 65))
    with pytest.raises(FieldError, match="must be at most 262144 bytes"):
        check_devices(pb.DeviceReport(devices=[device(reason="x" * 300_000)]))


async def test_a_worker_s_last_lines(running: Running, talkative: str) -> None:
    await registered(running, "w-1", talkative)
    await registered(running, "w-2", "127.0.0.1:9")
    answer = await running.fleet.TailLog(pb.TailLogRequest(worker_id="w-1"))
    assert len(answer.lines) == 100
    assert (await command(running, "logs", "w-1", "--lines", "2")).stdout == '{"message": "0"}\n{"message": "1"}\n'
    for request, code in (
        (pb.TailLogRequest(worker_id="w-9"), grpc.StatusCode.NOT_FOUND),
        (pb.TailLogRequest(worker_id="w-2"), grpc.StatusCode.UNAVAILABLE),
        (pb.TailLogRequest(worker_id="w-1", lines=1001), grpc.StatusCode.INVALID_ARGUMENT),
    ):
        assert (await refusal(running.fleet.TailLog(request))).code() is code


def record(name: str, **more: Any) -> pb.RequestRecord:
    return pb.RequestRecord(request_id=name, **{"tenant": "a", "model": "m", "code": "OK", **more})


async def test_requests_that_gateways_told_of(running: Running) -> None:
    ended = [record("r-1", worker_ids=["w-1", "w-2"], placement='{"worker_id": "w-2"}'), record("r-2", tenant="b")]
    report = fleet_pb2.ReportUsageRequest(gateway_id="g", ended=ended, running=[record("r-3", code="")])
    await running.fleet.ReportUsage(report)
    found = await running.fleet.ListRequests(pb.ListRequestsRequest())
    assert [(each.request_id, each.gateway_id) for each in found.ended] == [("r-2", "g"), ("r-1", "g")]
    assert [each.request_id for each in found.running] == ["r-3"]
    of_b = await running.fleet.ListRequests(pb.ListRequestsRequest(tenant="b"))
    assert ([each.request_id for each in of_b.ended], len(of_b.running)) == (["r-2"], 0)
    too_many = await refusal(running.fleet.ListRequests(pb.ListRequestsRequest(limit=1001)))
    assert too_many.code() is grpc.StatusCode.INVALID_ARGUMENT
    shown = await command(running, "requests", "--tenant", "a")
    assert all(text in shown.stdout for text in ("w-1 → w-2", "runs"))
    assert "r-2" not in shown.stdout
    last = json.loads((await command(running, "requests", "--last", "1", "--json")).stdout)
    assert [each["request_id"] for each in last] == ["r-3", "r-2"]
    assert (last[1]["cached_tokens"], last[1]["placement"]) == (0, None)
    first = json.loads((await command(running, "requests", "--json")).stdout)[-1]
    assert first["placement"] == {"worker_id": "w-2"}


def test_the_log_of_requests_is_bounded_and_forgets_gateways_that_are_silent() -> None:
    log = RequestLog()
    for start_at in range(0, 1500, 500):
        log.report("g", [record(str(number)) for number in range(start_at, start_at + 500)], [record("x")], 1.0)
    listed = log.listed("", "", 0, 2.0)
    assert (len(listed.ended), listed.ended[0].request_id, listed.ended[-1].request_id) == (1000, "1499", "500")
    assert len(log.listed("", "", 3, 2.0).ended) == 3
    assert (len(listed.running), len(log.listed("", "", 0, 30.0).running)) == (1, 0)
    log.report("other", [], [record("y")], 30.0)
    assert [each.request_id for each in log.listed("", "", 0, 30.0).running] == ["y"]
    with pytest.raises(FieldError, match="ended: must be at most"):
        check_records("ended", [record("x")] * (MAX_RECORDS + 1))
    with pytest.raises(FieldError, match=r"running\[0\]: must be at most"):
        check_records("running", [record("x" * 40_000)])


async def test_keys_are_made_limited_listed_and_revoked(running: Running, tmp_path: Path) -> None:
    path, ops = tmp_path / "keys.yaml", bearer("ops")
    wanted = pb.KeyInfo(id="new", tenant="team", max_priority=2, expires_unix_seconds=int(time.time()) + 3600)
    made = await running.fleet.CreateKey(pb.CreateKeyRequest(key=wanted), metadata=ops)
    key = read_keys(path).find(made.secret)
    assert key is not None
    assert (key.id, key.owner, key.role.value, key.max_priority) == ("new", "team", "tenant", 2)
    assert made.key == pb.KeyInfo(
        id="new", role="tenant", tenant="team", max_priority=2, expires_unix_seconds=wanted.expires_unix_seconds
    )
    limits = pb.TenantLimits(tenant="team", weight=2, tokens_per_minute=900)
    changed = await running.fleet.LimitTenant(pb.LimitTenantRequest(limits=limits), metadata=ops)
    assert changed.limits == pb.TenantLimits(tenant="team", weight=2, tokens_per_minute=900, max_concurrent=0)
    listed = await running.fleet.ListKeys(pb.ListKeysRequest(), metadata=ops)
    assert [each.id for each in listed.keys] == ["ops", "team", "new"]
    assert changed.limits in listed.tenants
    assert made.secret not in str(listed) + path.read_text()
    await running.fleet.RevokeKey(pb.RevokeKeyRequest(id="new"), metadata=ops)
    assert read_keys(path).find(made.secret) is None


def key(**fields: Any) -> pb.CreateKeyRequest:
    return pb.CreateKeyRequest(key=pb.KeyInfo(**fields))


def limits(**fields: Any) -> pb.LimitTenantRequest:
    return pb.LimitTenantRequest(limits=pb.TenantLimits(**fields))


@pytest.mark.parametrize(
    ("call", "request_", "code"),
    [
        ("CreateKey", key(id="team"), "ALREADY_EXISTS"),
        ("CreateKey", key(id="a b"), "INVALID_ARGUMENT"),
        ("CreateKey", key(id="a", role="worker"), "INVALID_ARGUMENT"),
        ("CreateKey", key(id="a", expires_unix_seconds=5), "INVALID_ARGUMENT"),
        ("CreateKey", key(id="a", expires_unix_seconds=2**62), "INVALID_ARGUMENT"),
        ("CreateKey", key(id="a", max_priority=2**30), "INVALID_ARGUMENT"),
        ("RevokeKey", pb.RevokeKeyRequest(id="absent"), "NOT_FOUND"),
        ("LimitTenant", limits(tenant="absent"), "NOT_FOUND"),
        ("LimitTenant", limits(tenant="team", weight=-1), "INVALID_ARGUMENT"),
        ("LimitTenant", limits(tenant="team", weight=float("nan")), "INVALID_ARGUMENT"),
        ("LimitTenant", limits(tenant="team", tokens_per_minute=2**63), "INVALID_ARGUMENT"),
    ],
)
async def test_nonsense_about_keys_changes_nothing(
    running: Running, tmp_path: Path, call: str, request_: Any, code: str
) -> None:
    before = (tmp_path / "keys.yaml").read_bytes()
    assert (await refusal(getattr(running.fleet, call)(request_))).code().name == code
    assert (tmp_path / "keys.yaml").read_bytes() == before


async def test_without_a_keys_file_that_can_be_written_there_are_no_keys_to_change(tmp_path: Path) -> None:
    one = await start(tmp_path)
    error = await refusal(one.fleet.ListKeys(pb.ListKeysRequest()))
    assert (error.code(), error.details()) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "The scheduler has no keys file: name the gateways' with keys_file.",
    )
    await stop(one)


async def test_options_are_described_as_they_are_declared(running: Running) -> None:
    schema = json.loads((await running.fleet.DescribeOptions(pb.DescribeOptionsRequest())).json_schema)
    assert set(schema["properties"]) == set(OPTIONS)
    assert all(each["description"] for each in schema["properties"].values())


async def test_tenants_and_strangers_hear_nothing(tmp_path: Path) -> None:
    fleet_keys = write(tmp_path / "fleet.yaml", {"id": "gw", "role": "gateway"})
    keys = write(tmp_path / "keys.yaml", {"id": "ops", "role": "operator"}, {"id": "team"})
    one = await start(tmp_path, fleet_keys_file=str(fleet_keys), keys_file=str(keys))
    calls = (
        "ListDevices",
        "TailLog",
        "ListRequests",
        "ListKeys",
        "CreateKey",
        "RevokeKey",
        "LimitTenant",
        "DescribeOptions",
        "StartBenchmark",
        "GetBenchmark",
        "ListBenchmarks",
        "CancelBenchmark",
    )
    for name in (*calls, "DescribeOptions"):
        call, request = getattr(one.fleet, name), getattr(operations_pb2, f"{name}Request")()
        assert (await refusal(call(request, metadata=bearer("team")))).code() is grpc.StatusCode.UNAUTHENTICATED
        assert (await refusal(call(request, metadata=bearer("gw")))).code() is grpc.StatusCode.PERMISSION_DENIED
    check = fleet_pb2.CheckModelRequest(source="/m")
    assert (
        await refusal(one.fleet.CheckModel(check, metadata=bearer("gw")))
    ).code() is grpc.StatusCode.PERMISSION_DENIED
    assert (await refusal(one.fleet.CheckModel(check, metadata=bearer("ops")))).code() is grpc.StatusCode.UNAVAILABLE
    assert await one.fleet.ListDevices(pb.ListDevicesRequest(), metadata=bearer("ops")) == pb.ListDevicesResponse()
    await stop(one)
