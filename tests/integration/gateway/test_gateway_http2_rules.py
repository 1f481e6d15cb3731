"""Frames that no client sends, or none should: what ends a connection, what one call of it, and what is let be."""

import asyncio
import socket
import struct

import pytest
from tests.support.echo_server import EACH, HANG, echo_server
from tests.support.gateway_rig import until
from tests.support.raw_grpc import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GREETING,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    RawHttp2,
    call,
    fields,
    frame,
    prefixed,
)

PRIORITY, PUSH_PROMISE, GOAWAY, UNKNOWN = 2, 5, 7, 11
PRIORITISED = 0x20
WIDEN_AND_NARROW = b"".join(frame(SETTINGS, payload=struct.pack(">HI", 4, size)) for size in (65_535, 65_536))
PROTOCOL, FLOW, CLOSED, SIZE, COMPRESSION, CALM = 1, 3, 5, 6, 9, 11
FOX = prefixed(b"fox")
WITHOUT_TE = fields(
    p_method="POST", p_scheme="http", p_path=EACH, content_type="application/grpc", accept_encoding="br"
)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (PREFACE + frame(PING, payload=bytes(8)), PROTOCOL),
        (GREETING + frame(SETTINGS, payload=bytes(5)), SIZE),
        (GREETING + frame(SETTINGS, 0, 1), PROTOCOL),
        (GREETING + frame(SETTINGS, payload=struct.pack(">HI", 4, 2**31)), FLOW),
        (GREETING + frame(SETTINGS, payload=struct.pack(">HI", 5, 16_383)), PROTOCOL),
        (GREETING + frame(PING, payload=bytes(7)), SIZE),
        (GREETING + frame(PUSH_PROMISE, 4, 2, bytes(4)), PROTOCOL),
        (GREETING + frame(DATA, 0, 0, b"a"), PROTOCOL),
        (GREETING + frame(DATA, 0, 1, b"a"), PROTOCOL),
        (GREETING + call(2, EACH), PROTOCOL),
        (GREETING + call(1, EACH) + frame(DATA, 8, 1, b"\x05a"), PROTOCOL),
        (GREETING + call(1, EACH, flags=0) + frame(PING, payload=bytes(8)), PROTOCOL),
        (GREETING + call(1, EACH, flags=0) + frame(CONTINUATION, END_HEADERS, 3), PROTOCOL),
        (GREETING + frame(CONTINUATION, END_HEADERS, 1), PROTOCOL),
        (GREETING + frame(HEADERS, END_HEADERS, 1, b"\xff"), COMPRESSION),
        (GREETING + call(1, EACH, flags=0) + frame(CONTINUATION, 0, 1) * 20, CALM),
        (GREETING + frame(SETTINGS, ACK, payload=bytes(6)), SIZE),
        (GREETING + frame(SETTINGS, payload=struct.pack(">HI", 2, 2)), PROTOCOL),
        (GREETING + frame(SETTINGS, payload=struct.pack(">HI", 5, 2**24)), PROTOCOL),
        (GREETING + frame(PING, 0, 1, bytes(8)), PROTOCOL),
        (GREETING + frame(GOAWAY, 0, 1, bytes(8)), PROTOCOL),
        (GREETING + frame(PRIORITY, 0, 0, bytes(5)), PROTOCOL),
        (GREETING + frame(PRIORITY, 0, 1, bytes(4)), SIZE),
        (GREETING + frame(HEADERS, END_HEADERS, 0), PROTOCOL),
        (GREETING + frame(HEADERS, END_HEADERS | PRIORITISED, 1, bytes(4)), SIZE),
        (GREETING + frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 1)), PROTOCOL),
        (GREETING + frame(WINDOW_UPDATE, 0, 0, bytes(3)), SIZE),
        (GREETING + call(1, HANG) + frame(RST_STREAM, 0, 1, bytes(3)), SIZE),
        (GREETING + call(1, HANG) + frame(RST_STREAM, 0, 1, bytes(4)) + frame(DATA, 0, 1, b"a"), CLOSED),
        (GREETING + call(1, "/no", END_HEADERS | END_STREAM) + call(5, HANG) + call(3, HANG), CLOSED),
        (GREETING + call(1, EACH, END_HEADERS | END_STREAM, connection="x") + frame(DATA, 1, 1), CLOSED),
        (GREETING + call(1, EACH, connection="x") + frame(DATA, 1, 1) * 2, CLOSED),
        (GREETING + frame(WINDOW_UPDATE, payload=bytes(4)), PROTOCOL),
        (GREETING + frame(WINDOW_UPDATE, payload=struct.pack(">I", 2**31 - 1)), FLOW),
        (GREETING + frame(RST_STREAM, 0, 9, bytes(4)), PROTOCOL),
        (GREETING + call(1, HANG) + frame(DATA, 0, 1, bytes(16_384)) * 70, FLOW),
        (GREETING + b"\x00\x40\x01\x00\x00\x00\x00\x00\x00", SIZE),
        (GREETING + frame(PING, payload=bytes(8)) * 20_000, CALM),
        (GREETING + b"".join(call(s, HANG) + frame(RST_STREAM, 0, s, bytes(4)) for s in range(1, 20_000, 2)), CALM),
        (GREETING + b"".join(call(s, EACH, connection="x") for s in range(1, 20_000, 2)), CALM),
        (GREETING + call(1, EACH, connection="x") + frame(DATA, 0, 1) * 20_000, CALM),
        (GREETING + call(1, EACH, connection="x") + frame(RST_STREAM, 0, 1, bytes(4)) * 20_000, CALM),
        (GREETING + b"".join(call(s, HANG) for s in range(1, 401, 2)) + WIDEN_AND_NARROW * 1000, CALM),
    ],
)
async def test_a_client_that_breaks_the_rules_is_told_which_and_sent_away(data: bytes, code: int) -> None:
    async with echo_server() as (server, echo, port):
        connection = await RawHttp2.open(port, b"")
        for start in range(0, len(data), 8192):
            await connection.send(data[start : start + 8192])
        goaway = await connection.frames_until(GOAWAY, 0)
        assert struct.unpack(">I", goaway[4:8])[0] == code, goaway
        await connection.ended()
        await until(lambda: len(server) == 0)
        assert echo.hanging == 0


async def test_who_still_sends_when_the_server_ends_a_connection_is_not_reset() -> None:
    loop = asyncio.get_running_loop()
    async with echo_server() as (_, _, port):
        with socket.socket() as client:
            client.setblocking(False)
            await loop.sock_connect(client, ("127.0.0.1", port))
            await loop.sock_sendall(client, GREETING + frame(DATA, 0, 0, b"a"))
            for _ in range(3):
                await asyncio.sleep(0.02)
                await loop.sock_sendall(client, frame(PING, payload=bytes(8)))
            answer = b""
            while data := await loop.sock_recv(client, 65536):
                answer += data
        assert answer.endswith(b"a frame on a stream that has none of its kind")


async def test_who_sends_on_and_on_when_the_server_ends_a_connection_is_cut_off() -> None:
    async with echo_server() as (_, _, port):
        client = await RawHttp2.open_narrow(port, GREETING + frame(DATA, 0, 0, b"a"))
        sent = 0
        while sent < 1024 and await client.send(frame(DATA, 0, 1, bytes(16_384))):
            sent += 1
        assert sent < 1024  # of 16 KiB each


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (call(1, HANG) + frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 2**31 - 1)), FLOW),
        (call(1, HANG, END_HEADERS | END_STREAM) + frame(DATA, 0, 1, b"a"), CLOSED),
        (call(1, HANG, END_HEADERS | END_STREAM) + frame(HEADERS, END_HEADERS, 1, fields(x_a="1")), CLOSED),
        (call(1, HANG) + frame(HEADERS, END_HEADERS, 1, fields(x_a="1")), PROTOCOL),
        (call(1, HANG) + frame(HEADERS, END_HEADERS | END_STREAM, 1, fields(p_path="/a")), PROTOCOL),
        (call(1, HANG) + frame(HEADERS, END_HEADERS | END_STREAM, 1, fields(Upper="1")), PROTOCOL),
        (call(1, HANG, content_length="7") + frame(DATA, 1, 1, FOX), PROTOCOL),
        (call(1, HANG, content_length="9") + frame(DATA, 1, 1, FOX), PROTOCOL),
        (call(1, HANG, content_length="x"), PROTOCOL),
        (call(1, HANG, te="gzip"), PROTOCOL),
    ],
)
async def test_a_call_that_breaks_the_rules_ends_and_others_go_on(data: bytes, code: int) -> None:
    async with echo_server() as (_, echo, port):
        connection = await RawHttp2.open(port, GREETING + data)
        assert await connection.frames_until(RST_STREAM, 1) == struct.pack(">I", code)
        await connection.send(call(3, EACH) + frame(DATA, 1, 3, FOX))
        assert await connection.frames_until(DATA, 3) == FOX
        await until(lambda: echo.hanging == 0)


async def test_what_says_nothing_to_a_server_is_let_be() -> None:
    settings = struct.pack(">HIHIHIHIHI", 1, 0, 2, 1, 3, 0, 6, 0, 0xABCD, 2**32 - 1)
    data = (
        frame(SETTINGS, payload=settings),
        frame(UNKNOWN, 0xFF, 7, b"what"),
        frame(PRIORITY, 0, 9, bytes(5)),
        frame(HEADERS, END_HEADERS, 1, WITHOUT_TE),
        frame(PRIORITY, 0, 1, struct.pack(">IB", 1, 0)),
        frame(DATA, 0, 1),
        frame(DATA, 8, 1, b"\x04" + FOX + bytes(4)),
        frame(GOAWAY, 0, 0, bytes(8) + b"bye"),
        frame(HEADERS, END_HEADERS | END_STREAM, 1, fields(x_trailer="1")),
        frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 1)),
    )
    async with echo_server() as (_, _, port):
        connection = await RawHttp2.open(port, GREETING + b"".join(data))
        assert await connection.frames_until(DATA, 1) == FOX
        assert b"grpc-status\x010" in await connection.frames_until(HEADERS, 1)
        await connection.send(frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 1)) + frame(RST_STREAM, 0, 1, bytes(4)))
        await connection.send(frame(PING, payload=b"12345678") * 300)
        assert await connection.frames_until(PING, 0) == b"12345678"


async def test_a_window_that_shrinks_below_what_was_sent_is_filled_up_first() -> None:
    async with echo_server() as (_, _, port):
        connection = await RawHttp2.open(port, GREETING + call(1, EACH) + frame(DATA, 0, 1, prefixed(bytes(1000))))
        assert len(await connection.frames_until(DATA, 1)) == 1005
        await connection.send(frame(SETTINGS, payload=struct.pack(">HI", 4, 1000)))  # 5 bytes less than were sent
        await connection.send(frame(DATA, 0, 1, FOX) + frame(PING, payload=bytes(8)))
        await connection.frames_until(PING, 0)
        await connection.send(frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 6)))
        assert await connection.frames_until(DATA, 1) == FOX[:1]
        await connection.send(frame(SETTINGS, payload=struct.pack(">HI", 4, 2**31 - 1)))
        assert await connection.frames_until(DATA, 1) == FOX[1:]


async def test_the_first_headers_end_hpacks_table_so_that_a_client_may_make_its_own_smaller() -> None:
    none = frame(SETTINGS, payload=struct.pack(">HI", 1, 0))
    async with echo_server() as (_, _, port):
        connection = await RawHttp2.open(port, PREFACE + none + call(1, "/no") + call(3, "/no"))
        first, second = [await connection.frames_until(HEADERS, stream) for stream in (1, 3)]
        assert first == b"\x20" + second


@pytest.mark.parametrize(
    ("encoding", "status"), [("", b"13"), ("identity", b"13"), ("br", b"12"), ("gzip", b"8"), ("deflate", b"8")]
)
async def test_compressed_messages_that_can_not_be_read(encoding: str, status: bytes) -> None:
    told = fields(grpc_encoding=encoding) if encoding else b""
    head = call(1, EACH, 0) + frame(CONTINUATION, END_HEADERS, 1, told)
    async with echo_server() as (_, _, port):
        connection = await RawHttp2.open(port, GREETING + head + frame(DATA, 1, 1, b"\x01" + FOX[1:]))
        answer = await connection.frames_until(HEADERS, 1)
        assert b"grpc-status" + bytes((len(status),)) + status in answer
        assert b"identity,gzip,deflate" in answer
