"""Who knocks at the gRPC port without a key: what he can have held, what he is told who speaks something else."""

import ssl
import struct
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.support.echo_server import EACH, HANG, echo_server
from tests.support.gateway_rig import GatewayRig, until
from tests.support.keyed_rig import keys_file
from tests.support.raw_grpc import (
    DATA,
    GREETING,
    HEADERS,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    RawHttp2,
    call,
    frame,
    prefixed,
)
from tests.support.raw_http import RawConnection
from tests.support.tls_files import write_tls_files

WATCH, GENERATE = "/grpc.health.v1.Health/Watch", "/polyfleet.v1.Inference/Generate"
GOAWAY, FLOW, INADEQUATE_SECURITY = 7, 3, 12
STRANGERS_STREAMS = 100
BIG = b"\x00" + struct.pack(">I", 3 * 1024 * 1024)  # the prefix of a message that never ends


def setting(payload: bytes, key: int) -> int:
    values: dict[int, int] = dict(struct.iter_unpack(">HI", payload))
    return values[key]


async def test_no_more_of_a_strangers_messages_is_held_than_one_window(tmp_path: Path) -> None:
    async with GatewayRig(config={"keys_file": keys_file(tmp_path)}) as rig:
        port = rig.gateway.grpc.port
        stranger = await RawHttp2.open(port)
        for stream in (1, 3, 5):
            await stranger.send(call(stream, WATCH) + frame(DATA, 0, stream, BIG + bytes(16_379)))
        await stranger.send(frame(DATA, 0, 1, bytes(16_000)) + frame(DATA, 0, 3, bytes(383)))
        await stranger.send(frame(DATA, 0, 1, b"x"))
        assert (await stranger.frames_until(GOAWAY, 0))[4:8] == struct.pack(">I", FLOW)
        async with rig.channel() as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            for _ in range(3):
                await stub.Check(health_pb2.HealthCheckRequest())


async def test_what_is_refused_is_not_held_against_him(tmp_path: Path) -> None:
    async with GatewayRig(config={"keys_file": keys_file(tmp_path)}) as rig:
        stranger = await RawHttp2.open(rig.gateway.grpc.port)
        for stream in range(1, 41, 2):  # 20 × 16 KiB
            await stranger.send(call(stream, GENERATE) + frame(DATA, 0, stream, BIG + bytes(16_379)))
            assert b"grpc-status\x0216" in await stranger.frames_until(HEADERS, stream)


async def test_strangers_get_fewer_streams_until_a_call_is_let_in() -> None:
    async with echo_server() as (_, _, port):
        stranger = await RawHttp2.open(port)
        assert setting(await stranger.frames_until(SETTINGS, 0), 3) == STRANGERS_STREAMS
        hangs = b"".join(call(stream, HANG) for stream in range(1, 2 * STRANGERS_STREAMS + 1, 2))
        await stranger.send(hangs + call(301, EACH))
        assert await stranger.frames_until(RST_STREAM, 301) == struct.pack(">I", 7)
        known = await RawHttp2.open(port, GREETING + call(1, EACH) + frame(DATA, 1, 1, prefixed(b"fox")))
        await known.frames_until(SETTINGS, 0)  # the first
        await known.frames_until(SETTINGS, 0)  # answers his own
        assert setting(await known.frames_until(SETTINGS, 0), 3) == 1024


async def test_a_message_larger_than_a_strangers_window_comes_of_who_is_let_in() -> None:
    async with echo_server() as (_, _, port):
        client = await RawHttp2.open(port, GREETING + call(1, EACH))
        await client.send(frame(DATA, 0, 1, prefixed(bytes(100_000))[:16_384]))
        assert int.from_bytes(await client.frames_until(WINDOW_UPDATE, 0), "big") > 500_000


async def test_what_speaks_http_1_is_told_what_is_spoken_here() -> None:
    async with echo_server() as (server, _, port):
        for request in (b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"POST /v1/chat/completions HTTP/1.1\r\n\r\n"):
            answer = await (await RawConnection.open(port, request)).rest()
            assert answer.startswith(b"HTTP/1.1 505 ")
            assert answer.endswith(b"\r\n\r\nThis port speaks gRPC, over HTTP/2: HTTP/1.1 is spoken on another port.\n")
        assert await (await RawConnection.open(port, b"\x16\x03\x01\x02\x00\x01\x00")).rest() == b""  # TLS
        assert await (await RawConnection.open(port, b"PRINT\r\n")).rest() == b""
        await until(lambda: len(server) == 0)


@pytest.fixture
def tls(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context, and a client's."""
    certificate, key = write_tls_files(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(certificate, key)
    return context, ssl.create_default_context(cafile=str(certificate))


@pytest.mark.parametrize("offered", [[], ["http/1.1"]])
async def test_over_tls_http_2_is_agreed_on_by_alpn(
    tls: tuple[ssl.SSLContext, ssl.SSLContext], offered: list[str]
) -> None:
    context, client = tls
    if offered:
        client.set_alpn_protocols(offered)
    async with echo_server(tls=context) as (server, _, port):
        connection = await RawHttp2.open(port, ssl=client, server_hostname="localhost")
        assert (await connection.frames_until(GOAWAY, 0))[4:8] == struct.pack(">I", INADEQUATE_SECURITY)
        await connection.ended()
        request = await RawConnection.open(port, b"GET / HTTP/1.1\r\n\r\n", ssl=client, server_hostname="localhost")
        assert b"This port speaks gRPC" in await request.rest()
        await until(lambda: len(server) == 0)


async def test_alpn_chooses_h2_among_others_and_plain_text_is_sent_away(
    tls: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    context, client = tls
    client.set_alpn_protocols(["http/1.1", "h2"])
    async with echo_server(tls=context) as (server, _, port):
        data = GREETING + call(1, EACH) + frame(DATA, 1, 1, prefixed(b"fox"))
        connection = await RawHttp2.open(port, data, ssl=client, server_hostname="localhost")
        assert connection.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
        assert await connection.frames_until(DATA, 1) == prefixed(b"fox")
        connection.writer.close()
        await (await RawConnection.open(port, GREETING)).rest()  # it ends
        await until(lambda: len(server) == 0)
