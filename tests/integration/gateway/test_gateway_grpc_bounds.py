"""The gRPC port against callers who send too much, too slowly, or nothing at all; none of them has a key."""

import asyncio
import contextlib
import hashlib
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import psutil
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.support.gateway_rig import GatewayRig, Stream, failure_of, text_worker, until
from tests.support.raw_grpc import (
    CONTINUATION,
    DATA,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    RawHttp2,
    call,
    frame,
)

from polyfleet.v1 import inference_pb2 as pb
from polyfleet.v1 import inference_pb2_grpc

KEY = "secret-a"
GENERATE = "/polyfleet.v1.Inference/Generate"
METADATA = (("authorization", f"Bearer {KEY}"),)
REQUEST = pb.GenerateRequest(token_ids=[4, 5], max_tokens=3)


class Rig(GatewayRig):
    """Asks for keys."""

    async def __aenter__(self) -> "Rig":
        await super().__aenter__()
        await self.add(text_worker("w-1"))
        return self

    @property
    def port(self) -> int:
        return self.gateway.grpc.port

    def refused(self, reason: str) -> float:
        labels = {"protocol": "grpc", "reason": reason}
        registry = self.gateway.metrics.registry
        return registry.get_sample_value("polyfleet_connections_refused_total", labels) or 0.0

    async def recovers(self) -> None:
        """Until it answers: gRPC itself turns calls away while its queue is full of those that were reset."""
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                assert await self.answers()
                return

    async def answers(self) -> bool:
        """Whether a newcomer with a key, and a health check without, are served."""
        async with self.channel() as channel:
            check = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), wait_for_ready=True)
            generate = inference_pb2_grpc.InferenceStub(channel).Generate
            stream = await Stream.read(generate(REQUEST, metadata=METADATA, wait_for_ready=True))
            return len(stream.ids()) == 3 and (await check).status != health_pb2.HealthCheckResponse.UNKNOWN


@pytest.fixture
def config(tmp_path: Path) -> dict[str, str]:
    keys = [{"id": "a", "hash": hashlib.sha256(KEY.encode()).hexdigest()}]
    (tmp_path / "keys.yaml").write_text(yaml.safe_dump({"keys": keys}))
    return {"keys_file": str(tmp_path / "keys.yaml")}


@pytest.fixture
async def rig(config: dict[str, str]) -> AsyncIterator[Rig]:
    async with Rig(config=config) as rig:
        yield rig


async def test_connections_without_a_call_keep_nobody_out(config: dict[str, str]) -> None:
    async with Rig(config=config, max_connections=32) as rig:
        assert (await Stream.read(rig.stub.Generate(REQUEST, metadata=METADATA))).ids()
        silent = [await RawHttp2.open(rig.port) for _ in range(60)]
        assert await rig.answers()
        assert (await Stream.read(rig.stub.Generate(REQUEST, metadata=METADATA))).ids()
        await silent[0].ended()
        assert len(rig.gateway.grpc.connections) <= 32
        assert rig.refused("full")


async def test_an_address_has_its_share(config: dict[str, str]) -> None:
    async with Rig(config=config, max_connections_per_address=8) as rig:
        assert await rig.answers()
        other = await RawHttp2.open(rig.port, local_addr=("127.0.0.2", 0))
        silent = [await RawHttp2.open(rig.port) for _ in range(20)]
        await asyncio.gather(*(connection.ended() for connection in silent[:10]))
        assert rig.refused("address_full") >= 10
        assert await rig.answers()
        assert await other.send(frame(PING, payload=bytes(8)))
        assert await other.frames_until(PING, 0) == bytes(8)


async def test_handshakes_and_idle_connections_end_in_time(config: dict[str, str]) -> None:
    async with Rig(config=config, header_seconds=0.3, idle_seconds=0.5) as rig:
        for data in (b"", PREFACE[:5], PREFACE, PREFACE + frame(SETTINGS)):
            await (await RawHttp2.open(rig.port, data)).ended()
        assert await rig.answers()


async def test_no_key_is_refused_before_the_message(rig: Rig) -> None:
    connection = await RawHttp2.open(rig.port)
    await connection.send(call(1, GENERATE) + frame(DATA, 0, 1, b"\x00\x00\x3f\xff\xff" + bytes(100)))
    assert b"grpc-status" in await connection.frames_until(HEADERS, 1)
    labels = {"model": "", "method": "Generate", "code": "UNAUTHENTICATED"}
    assert rig.gateway.metrics.registry.get_sample_value("polyfleet_requests_total", labels) == 1
    unknown = rig.stub.Generate(REQUEST, metadata=(("authorization", "Bearer wrong"),))
    assert (await failure_of(unknown)).code is grpc.StatusCode.UNAUTHENTICATED
    assert rig.gateway.metrics.registry.get_sample_value("polyfleet_requests_total", labels) == 2


async def test_a_message_that_does_not_come_ends_the_call(config: dict[str, str]) -> None:
    async with Rig(config=config, body_seconds=0.3) as rig:
        connection = await RawHttp2.open(rig.port)
        await connection.send(call(1, GENERATE, authorization=f"Bearer {KEY}"))
        assert b"grpc-status" in await connection.frames_until(HEADERS, 1)
        await until(lambda: rig.gateway.ledger.running == 0)


async def test_metadata_over_the_limit_is_refused(rig: Rig) -> None:
    call = rig.stub.Generate(REQUEST, metadata=(*METADATA, ("x-a", "b" * 30_000)))
    assert (await failure_of(call)).code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_headers_without_end_take_no_memory(rig: Rig) -> None:
    async def bomb() -> None:
        connection = await RawHttp2.open(rig.port)
        await connection.send(call(1, GENERATE, flags=0))
        for _ in range(500):  # 8 MB
            if not await connection.send(frame(CONTINUATION, 0, 1, b"\x40\x7f\x80\x7f" + bytes(16_000))):
                return
        connection.writer.transport.abort()

    await bomb()
    process = psutil.Process(os.getpid())
    before = process.memory_info().rss
    await asyncio.gather(*(bomb() for _ in range(6)))
    assert process.memory_info().rss - before < 20_000_000
    assert await rig.answers()


@pytest.mark.parametrize("kind", ["resets", "pings", "settings"])
async def test_a_flood_of_frames_is_survived(rig: Rig, kind: str) -> None:
    async def flood() -> None:
        connection = await RawHttp2.open(rig.port)
        for start in range(1, 8_000, 200):
            if kind == "resets":
                streams = range(start, start + 200, 2)
                data = b"".join(call(s, GENERATE) + frame(RST_STREAM, 0, s, bytes(4)) for s in streams)
            elif kind == "pings":
                data = frame(PING, payload=bytes(8)) * 100
            else:
                data = frame(SETTINGS, payload=b"\x00\x04\x00\x00\xff\xff") * 100
            if not await connection.send(data):
                return
        connection.writer.transport.abort()

    process = psutil.Process(os.getpid())
    await flood()
    before = process.memory_info().rss
    await asyncio.gather(*(flood() for _ in range(4)))
    await rig.recovers()
    assert process.memory_info().rss - before < 50_000_000
    await until(lambda: rig.gateway.ledger.running == 0)


async def test_a_connection_cut_at_any_byte_leaves_no_line_in_the_log(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    message = REQUEST.SerializeToString()
    body = b"\x00" + len(message).to_bytes(4, "big") + message
    whole = PREFACE + frame(SETTINGS) + call(1, GENERATE, authorization=f"Bearer {KEY}") + frame(DATA, 1, 1, body)
    with caplog.at_level(logging.WARNING):
        for length in range(len(whole) + 1):
            connection = await RawHttp2.open(rig.port, whole[:length])
            await connection.writer.drain()
            if length % 2:
                connection.writer.transport.abort()
            else:
                connection.writer.close()
        assert await rig.answers()
        await until(lambda: rig.gateway.ledger.running == 0)
        rig.gateway.ledger.check()
    assert [record.getMessage() for record in caplog.records if "scheduler" not in record.getMessage()] == []
