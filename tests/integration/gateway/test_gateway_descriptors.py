"""A gateway with few file descriptors, and more strangers than it has."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.support.raw_grpc import RawHttp2
from tests.support.raw_http import RawConnection

HEALTHZ = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
PORTS = "--grpc-listen 127.0.0.1:0 --http-listen 127.0.0.1:0 --metrics-listen 127.0.0.1:0 --fleet 127.0.0.1:1"


async def test_connections_beyond_the_descriptors_end_neither_protocol() -> None:
    command = f"ulimit -n 256; exec {sys.executable} -m polyfleet.gateway {PORTS}"
    process = await asyncio.create_subprocess_shell(command, stdout=PIPE, stderr=PIPE)
    assert process.stderr is not None
    try:
        while (line := json.loads(await process.stderr.readline()))["message"] != "Gateway listens.":
            pass
        half_open = [await RawConnection.open(line["http_port"], HEALTHZ[:-2]) for _ in range(300)]
        silent = [await RawHttp2.open(line["grpc_port"]) for _ in range(300)]
        for _ in range(5):
            assert (await (await RawConnection.open(line["http_port"], HEALTHZ)).reply())[0] == 200
        async with grpc.aio.insecure_channel(f"127.0.0.1:{line['grpc_port']}") as channel:
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), wait_for_ready=True)
        for writer in [each.writer for each in half_open] + [each.writer for each in silent]:
            writer.transport.abort()
    finally:
        process.terminate()
        _, log = await process.communicate()
    assert process.returncode == 0
    assert len(log.splitlines()) < 10, log.decode()
