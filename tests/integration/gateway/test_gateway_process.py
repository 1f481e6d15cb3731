"""`python -m polyfleet.gateway` as an operator runs it."""

import asyncio
import json
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import psutil
import pytest
from tests.support.fake_worker import fake_tokens
from tests.support.gateway_rig import VOCABULARY, Stream, text_worker, until
from tests.support.snapshot_fleet import SnapshotFleet

from polyfleet.v1 import fleet_pb2, inference_pb2_grpc
from polyfleet.v1 import inference_pb2 as pb

ANY_PORTS = tuple(word for port in ("grpc", "http", "metrics") for word in (f"--{port}-listen", "127.0.0.1:0"))


async def start(*arguments: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "polyfleet.gateway", *arguments, stdout=PIPE, stderr=PIPE
    )


async def refused(*arguments: str) -> str:
    """What a gateway says that can't start: one line, exit status 2."""
    process = await start(*arguments)
    _, err = await process.communicate()
    assert process.returncode == 2
    lines = err.decode().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


@asynccontextmanager
async def running(*arguments: str) -> AsyncIterator[tuple[Process, int]]:
    """A gateway that listens, and its gRPC port."""
    process = await start(*arguments)
    assert process.stderr is not None
    try:
        while line := json.loads(await process.stderr.readline()):
            if line["message"] == "Gateway listens.":
                break
        yield process, line["grpc_port"]
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_serves_in_little_memory_and_drains(number: signal.Signals) -> None:
    worker = text_worker("w-1", token_seconds=0.005)
    async with SnapshotFleet() as fleet, worker:
        fleet.add_assets(worker.assets)
        fleet.publish([fleet_pb2.FleetWorker(info=worker.info(), status=worker.status())])
        async with running(*ANY_PORTS, "--fleet", fleet.address) as (process, port):
            options = [("grpc.use_local_subchannel_pool", 1)]
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
                call = inference_pb2_grpc.InferenceStub(channel).Generate(
                    pb.GenerateRequest(token_ids=[4, 5], max_tokens=150)
                )
                reading = asyncio.create_task(Stream.read(call))
                await until(lambda: any(each.generated > 20 for each in worker.sequences.values()))
                memory = psutil.Process(process.pid)
                assert memory.memory_info().rss < 300e6
                loaded = {Path(each.path).name for each in memory.memory_maps()}
                assert not any("libtorch" in name or "_raylet" in name for name in loaded)
                process.send_signal(number)
                assert (await reading).ids() == fake_tokens([4, 5], 150, 0, VOCABULARY)
            assert await process.wait() == 0


async def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for flag in ("--grpc-listen", "--http-listen", "--metrics-listen"):
            said = await refused(*ANY_PORTS, flag, address)
            assert said == f"{address} is in use: free it, or choose another address with {flag}."


async def test_a_second_gateway_does_not_share_the_port() -> None:
    async with running(*ANY_PORTS, "--fleet", "127.0.0.1:1") as (_, port):
        said = await refused(*ANY_PORTS, "--grpc-listen", f"127.0.0.1:{port}")
    assert said.startswith(f"127.0.0.1:{port} is in use")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--grpc-listen", "0.0.0.0:0"), "Listening on 0.0.0.0:0 without keys would let anybody in"),
        (("--http-listen", "[::]:0"), "Listening on [::]:0 without keys"),
        (("--grpc-listen", "127.0.0.1"), "--grpc-listen must be host:port"),
        (("--metrics-listen", "9101"), "--metrics-listen must be host:port"),
        (("--tls-cert", "cert.pem"), "TLS needs both"),
        (("--tls-cert", "/absent", "--tls-key", "/absent"), "The TLS file /absent can't be read: No such file"),
        (("--keys-file", "/absent"), "The keys file /absent can't be read: No such file"),
        (("--fleet-token-file", "/absent"), "The fleet token file /absent can't be read"),
        (("--config", "/absent"), "The configuration /absent can't be read: No such file"),
    ],
)
async def test_what_can_not_work_is_said_in_one_sentence(arguments: tuple[str, ...], said: str) -> None:
    assert (await refused(*ANY_PORTS, *arguments)).startswith(said)


async def test_the_file_is_read_and_flags_override_it(tmp_path: Path) -> None:
    path = tmp_path / "polyfleet.yaml"
    path.write_text("gateway: {grpc_listen: '127.0.0.1', limits: {max_queued: 3}}\nscheduler: {listen: x}\n")
    assert (await refused("--config", str(path))).startswith(
        "--grpc-listen must be host:port with a port from 0 to 65535, not '127.0.0.1'"
    )
    async with running("--config", str(path), *ANY_PORTS) as (process, _):
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0
    path.write_text("gateway: {limits: {max_queued: -3}}")
    assert "at `$.gateway.limits.max_queued`" in await refused("--config", str(path))
