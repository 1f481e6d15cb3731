"""What one call of a connection of HTTP/2 does to the others, which may be those of other people behind one proxy."""

import struct
from typing import Any

import pytest
from tests.support.echo_server import EACH, HANG, SERVICE, echo_server
from tests.support.gateway_rig import until
from tests.support.raw_grpc import (
    DATA,
    END_HEADERS,
    GREETING,
    HEADERS,
    PING,
    RST_STREAM,
    WINDOW_UPDATE,
    RawHttp2,
    call,
    fields,
    frame,
    prefixed,
)

PROTOCOL = 1


@pytest.mark.parametrize(
    "bad",
    [
        frame(HEADERS, END_HEADERS, 3, fields(p_path="/a")),
        call(3, EACH, p_status="200"),
        call(3, EACH, connection="close"),
        call(3, EACH, Upper="1"),
        call(3, EACH, x_a="1\r\n2"),
        call(3, HANG) + call(3, HANG),
    ],
)
async def test_a_malformed_call_ends_alone(bad: bytes) -> None:
    async with echo_server() as (_, echo, port):
        connection = await RawHttp2.open(port, GREETING + call(1, EACH) + bad + frame(DATA, 1, 3, prefixed(b"bad")))
        assert await connection.frames_until(RST_STREAM, 3) == struct.pack(">I", PROTOCOL)
        await connection.send(frame(DATA, 1, 1, prefixed(b"fox")))
        assert await connection.frames_until(DATA, 1) == prefixed(b"fox")
        assert echo.hanging == 0


@pytest.mark.parametrize("told", [{"grpc_timeout": "soon"}, {"grpc_timeout": "123456789S"}, {"k-bin": "%"}])
async def test_what_of_grpc_cannot_be_read_ends_its_call_with_a_status(told: dict[str, Any]) -> None:
    async with echo_server() as (_, _, port):
        connection = await RawHttp2.open(port, GREETING + call(1, EACH) + call(3, EACH, **told))
        assert b"grpc-status\x0213" in await connection.frames_until(HEADERS, 3)
        await connection.send(frame(DATA, 1, 1, prefixed(b"fox")))
        assert await connection.frames_until(DATA, 1) == prefixed(b"fox")


async def test_a_malformed_call_is_read_for_what_later_ones_refer_to() -> None:
    kept = b"\x40\x03x-a\x051 \r\n2" + b"\x40\x03x-b\x03fox"  # the first can't be; both are known from now on
    async with echo_server() as (_, _, port):
        block = call(3, EACH)[9:] + b"\xbe"
        whole = GREETING + frame(HEADERS, END_HEADERS, 1, kept) + frame(HEADERS, END_HEADERS, 3, block)
        connection = await RawHttp2.open(port, whole + frame(DATA, 1, 3))
        assert await connection.frames_until(RST_STREAM, 1) == struct.pack(">I", PROTOCOL)
        assert b"\x03x-b\x03fox" in await connection.frames_until(HEADERS, 3)


async def test_calls_that_wait_for_room_all_get_some_however_little_comes_at_once() -> None:
    calls = b"".join(call(s, f"/{SERVICE}/Many") + frame(DATA, 1, s, prefixed(b"1 3")) for s in range(3, 23, 2))
    async with echo_server() as (_, echo, port):
        first = call(1, f"/{SERVICE}/Many") + frame(DATA, 1, 1, prefixed(b"1 65530"))
        connection = await RawHttp2.open(port, GREETING + first)
        left = 65_535
        while left:
            left -= len(await connection.frames_until(DATA, 1))
        await connection.send(calls + frame(WINDOW_UPDATE, payload=struct.pack(">I", 1)) * 79)
        await until(lambda: echo.written == 10)
        await connection.send(frame(WINDOW_UPDATE, payload=struct.pack(">I", 1)))
        await until(lambda: echo.written == 11)


async def test_frames_of_strangers_that_come_at_once_are_all_read_in_the_end() -> None:
    async with echo_server() as (_, _, port):
        sent = [struct.pack(">Q", number) for number in range(3000)]
        connection = await RawHttp2.open(port, GREETING + b"".join(frame(PING, payload=each) for each in sent))
        assert [await connection.frames_until(PING, 0) for _ in sent] == sent
