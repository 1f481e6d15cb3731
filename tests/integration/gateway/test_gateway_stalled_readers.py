"""Clients that stop reading: what they hold is given back at the deadline, and nothing is logged as a fault."""

import json
import logging
import socket
from typing import Any, cast

import grpc
import pytest
from tests.support.fake_worker import FakeWorker
from tests.support.gateway_rig import GatewayRig, Stream, failure_of, text_worker, until
from tests.support.raw_http import RawConnection

from polyfleet.v1 import inference_pb2 as pb

REQUEST = pb.GenerateRequest(token_ids=[4, 5], max_tokens=20)
FLOOD = pb.GenerateRequest(token_ids=[4, 5], max_tokens=16_000, logprobs=20)
SMALL_WINDOW = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024))
LIMITS: dict[str, Any] = {"max_pending_tokens": 64, "max_concurrent": 1, "queue_timeout": 5.0}


def flooding() -> FakeWorker:
    return text_worker("w-1", context_length=60_000, token_seconds=0.0002)


def faults(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR or record.exc_info]


async def stalled_stream(rig: GatewayRig, channel: Any, worker: FakeWorker) -> Any:
    """A call whose client has read one message and reads no more; its sequence is parked."""
    call = type(rig.stub)(channel).Generate(FLOOD)
    await call.read()
    await until(lambda: bool(worker.cancelled) and not worker.sequences)
    return call


async def reads(call: Any) -> None:
    """All that is left."""
    while await call.read():
        pass


async def test_its_turn_comes_free_at_the_deadline(caplog: pytest.LogCaptureFixture) -> None:
    worker = flooding()
    async with GatewayRig(max_request_seconds=1.5, **LIMITS) as rig:
        await rig.add(worker)
        async with rig.channel(*SMALL_WINDOW) as channel:
            call = await stalled_stream(rig, channel, worker)
            await until(lambda: rig.gateway.ledger.running == 0)
            assert rig.gateway.ledger.failed == 1
            assert (await Stream.read(rig.stub.Generate(REQUEST))).ids()
            code = (await failure_of(reads(call))).code  # the status may have been given up before
            assert code in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
        rig.gateway.ledger.check()
    assert faults(caplog) == []


async def test_its_callers_own_deadline_counts_too(caplog: pytest.LogCaptureFixture) -> None:
    worker = flooding()
    async with GatewayRig(**LIMITS) as rig:
        await rig.add(worker)
        async with rig.channel(*SMALL_WINDOW) as channel:
            call = type(rig.stub)(channel).Generate(FLOOD, timeout=1.5)
            await call.read()
            await until(lambda: rig.gateway.ledger.running == 0)
            assert (await Stream.read(rig.stub.Generate(REQUEST))).ids()
        rig.gateway.ledger.check()
    assert faults(caplog) == []


async def test_cancelling_it_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    worker = flooding()
    async with GatewayRig(**LIMITS) as rig:
        await rig.add(worker)
        async with rig.channel(*SMALL_WINDOW) as channel:
            call = await stalled_stream(rig, channel, worker)
            call.cancel()
            await until(lambda: rig.gateway.ledger.running == 0)
            assert rig.gateway.ledger.cancelled == 1
            stalled = await stalled_stream(rig, channel, worker)
        await until(lambda: rig.gateway.ledger.running == 0)  # the connection is gone
        assert stalled.done()
        assert (await Stream.read(rig.stub.Generate(REQUEST))).ids()
    assert faults(caplog) == []


@pytest.mark.parametrize(
    ("reason", "limits"), [("deadline", {"max_request_seconds": 4.0}), ("stalled", {"stall_seconds": 0.5})]
)
async def test_a_stream_of_events_is_cut(caplog: pytest.LogCaptureFixture, reason: str, limits: dict[str, Any]) -> None:
    worker = flooding()
    body = json.dumps({"prompt": "Hi", "max_tokens": 16_000, "logprobs": 20, "stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    async with GatewayRig(**LIMITS, **limits) as rig:
        await rig.add(worker)
        listener = cast(socket.socket, rig.gateway.http._source)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)  # so that little fills it
        connection = await RawConnection.open_narrow(rig.gateway.http.port, head % len(body) + body)
        await until(lambda: bool(worker.cancelled) and not worker.sequences)
        await until(lambda: rig.gateway.ledger.running == 0)
        assert (await Stream.read(rig.stub.Generate(REQUEST))).ids()
        assert b"[DONE]" not in await connection.rest()
        await until(lambda: len(rig.gateway.http.doors) == 0)
        labels = {"protocol": "http", "reason": reason}
        value = rig.gateway.metrics.registry.get_sample_value("polyfleet_connections_refused_total", labels)
        assert value == 1
        rig.gateway.ledger.check()
    assert faults(caplog) == []
