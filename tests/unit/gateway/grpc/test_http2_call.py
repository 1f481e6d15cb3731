"""A call of gRPC over HTTP/2 apart from its connection: what it keeps of messages, and how they are taken."""

import asyncio
import tracemalloc
from typing import Any, cast

import pytest
from tests.support.echo_server import SERVICE, echo_server

from polyfleet.gateway.begins import TURNS
from polyfleet.gateway.grpc.http2.call import OK, WINDOW, Call
from polyfleet.gateway.grpc.http2.heads import Head

MESSAGE = b"\x00\x00\x00\x00\x03abc"


class Wire:
    """A connection that keeps what it is told to send."""

    def __init__(self) -> None:
        self.peer, self.initial_window, self.room = "ipv4:127.0.0.1:1", WINDOW, WINDOW
        self.waiting: dict[Call, None] = {}
        self.headers: list[tuple[tuple[bytes, bytes], ...]] = []
        self.taken = 0
        self.sent: list[bytes] = []

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    def send_data(self, stream: int, data: bytes) -> None:
        self.sent.append(data)

    def send_headers(self, stream: int, headers: tuple[tuple[bytes, bytes], ...], *, end: bool) -> None:
        self.headers.append(headers)

    def took(self, size: int) -> None:
        self.taken += size

    def forget(self, call: Call) -> None:
        pass


def a_call(max_bytes: int = 1000) -> tuple[Call, Wire]:
    wire = Wire()
    return Call(cast(Any, wire), 1, Head("/service/Method", (), None, b"identity", 0), max_bytes), wire


async def taken(call: Call) -> list[bytes]:
    return [message async for message in call.messages(None)]


async def test_messages_that_nobody_takes_are_kept_as_they_came() -> None:
    call, _ = a_call()
    small = bytes(5) * (WINDOW // 5)
    tracemalloc.start()
    try:
        call.came(small, len(small), end=True)
        assert tracemalloc.get_traced_memory()[1] < 3 * WINDOW
    finally:
        tracemalloc.stop()
    assert len(await taken(call)) == WINDOW // 5


@pytest.mark.parametrize("size", [1, 2, 5, 7, 8, 9, 17, 100])
async def test_messages_in_pieces_of_any_size(size: int) -> None:
    call, _ = a_call()
    data = MESSAGE * 3 + bytes(5)
    for at in range(0, len(data), size):
        call.came(data[at : at + size], min(size, len(data) - at), end=at + size >= len(data))
    assert await taken(call) == [b"abc", b"abc", b"abc", b""]
    call.finish(OK)


@pytest.mark.parametrize("torn", [b"\x00", MESSAGE[:-1]])
async def test_an_end_within_a_message_is_told_behind_those_that_are_whole(torn: bytes) -> None:
    call, wire = a_call()
    call.came(MESSAGE, len(MESSAGE), end=False)
    call.came(torn, len(torn), end=True)
    assert await taken(call) == []  # it has ended, and its handler is cancelled
    assert (b"grpc-status", b"13") in wire.headers[-1]


async def test_a_message_that_is_too_large_ends_the_call_when_its_length_has_come() -> None:
    call, wire = a_call(max_bytes=2)
    call.came(MESSAGE[:5], 5, end=False)
    assert (b"grpc-status", b"8") in wire.headers[-1]
    assert call.ended


async def test_a_status_with_letters_that_headers_can_not_hold_is_told() -> None:
    call, wire = a_call()
    call.set_trailing_metadata((("note", "日"),))
    call.finish(OK)
    assert (b"note", b"?") in wire.headers[-1]


async def test_calls_that_come_together_begin_one_after_another_but_those_that_are_lost_before() -> None:
    async with echo_server() as (server, echo, _):
        head = Head(f"/{SERVICE}/Hang", (), None, b"identity", 0)
        calls = [server.called(cast(Any, Wire()), stream, head) for stream in (1, 3, 5, 7)]
        calls[1].lost()
        begun = []
        for _ in range(1 + 3 * TURNS):
            await asyncio.sleep(0)
            begun.append(sum(call.task is not None for call in calls))
        assert begun == [1] * 2 * TURNS + [2] * TURNS + [3]
        while echo.hanging < 3:
            await asyncio.sleep(0)
        assert calls[1].task is None


async def test_a_server_that_stops_lets_go_of_calls_that_have_not_begun() -> None:
    async with echo_server() as (server, echo, _):
        wire = Wire()
        head = Head(f"/{SERVICE}/Hang", (), None, b"identity", 0)
        calls = [server.called(cast(Any, wire), stream, head) for stream in (1, 3)]
    assert all(call.ended for call in calls)
    assert echo.hanging == 0
    assert sum((b"grpc-status", b"14") in each for each in wire.headers) == 2
