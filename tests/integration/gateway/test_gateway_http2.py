"""The server of HTTP/2 that carries gRPC, against gRPC's own client, and against frames that no client sends."""

import asyncio
import struct
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from tests.support.echo_server import EACH, HANG, echo_server, method
from tests.support.gateway_rig import until
from tests.support.raw_grpc import (
    ACK,
    DATA,
    GREETING,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    RawHttp2,
    call,
    frame,
    prefixed,
)

from polyfleet.gateway.pace import Pace

GOAWAY = 7
ALL_TAKEN = struct.pack(">II", 2**31 - 1, 0)  # of the calls that come yet


def channel(port: int, *options: tuple[str, Any], **more: Any) -> Any:
    options = (("grpc.use_local_subchannel_pool", 1), *options)
    return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options, **more)


async def failure(call: Any) -> Any:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        [each async for each in call]
    return caught.value


async def test_messages_metadata_and_statuses_as_grpc_has_them() -> None:
    async with echo_server() as (_, _, port), channel(port) as client:
        sent = [b"", b"fox", bytes(range(256)) * 100]
        metadata = (("x-a", "1"), ("x-a", "2"), ("x-k-bin", bytes(range(256))))
        echo = method(client, "Each")(iter(sent), metadata=metadata)
        assert [each async for each in echo] == sent
        assert [tuple(each) for each in await echo.trailing_metadata()] == list(metadata)
        assert await method(client, "All")(iter(sent)) == b"".join(sent)
        error = await failure(method(client, "Fail")(iter([b"100 % \xc3\xa4\n"])))
        assert (error.code(), error.details()) == (grpc.StatusCode.DATA_LOSS, "100 % ä\n")
        assert [tuple(each) for each in error.trailing_metadata()] == [("why-bin", b"\x00\xff")]
        assert (await failure(method(client, "Nothing")(iter([])))).code() is grpc.StatusCode.UNIMPLEMENTED
        error = await failure(method(client, "Broken")(iter([])))
        assert error.code() is grpc.StatusCode.UNKNOWN
        assert "secret" not in str(error.details())


async def test_messages_larger_than_any_window() -> None:
    async with echo_server() as (_, _, port), channel(port, ("grpc.max_receive_message_length", -1)) as client:
        sent = [bytes((number,)) * (1 << 21) for number in range(4)]
        assert [each async for each in method(client, "Each")(iter(sent))] == sent
        error = await failure(method(client, "Each")(iter([bytes(4 * 1024 * 1024 + 1)])))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_many_calls_at_once_over_one_connection() -> None:
    async def one(client: Any, number: int) -> None:
        sent = [b"%d" % number] * 20
        assert [each async for each in method(client, "Each")(iter(sent))] == sent

    async with echo_server() as (server, _, port), channel(port) as client:
        await asyncio.gather(*(one(client, number) for number in range(500)))
        assert len(server) == 1


async def test_who_does_not_read_is_not_written_for() -> None:
    async with echo_server() as (_, echo, port), channel(port, ("grpc.http2.bdp_probe", 0)) as client:
        many = method(client, "Many")(iter([b"4000 16000"]))
        await many.read()
        await asyncio.sleep(0.3)
        assert echo.written < 1000  # of 64 MB, what windows and buffers hold
        rest = 0
        while isinstance(await many.read(), bytes):
            rest += 1
        assert rest == 3999


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_compressed_requests(compression: grpc.Compression) -> None:
    async with echo_server() as (_, _, port), channel(port, compression=compression) as client:
        assert [each async for each in method(client, "Each")(iter([b"fox" * 1000]))] == [b"fox" * 1000]
        error = await failure(method(client, "Each")(iter([bytes(5 * 1024 * 1024)])))  # a few KB, as it comes
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_deadline_and_a_client_who_leaves_end_the_handler() -> None:
    async with echo_server() as (server, echo, port), channel(port) as client:
        error = await failure(method(client, "Hang")(iter([]), timeout=0.05))
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: echo.cancelled == 1)
        left = method(client, "Hang")(iter([]))
        await left.wait_for_connection()
        await until(lambda: echo.hanging == 1)
        left.cancel()
        await until(lambda: echo.cancelled == 2)
        lost = [await RawHttp2.open(port, GREETING + call(1, HANG) + call(3, HANG)) for _ in range(3)]
        await until(lambda: echo.hanging == 6)
        for connection in lost:
            connection.writer.transport.abort()
        await until(lambda: echo.cancelled == 8)
        await until(lambda: len(server) == 1)


async def test_a_deadline_is_kept_for_who_does_not_keep_it_himself() -> None:
    async with echo_server() as (_, echo, port):
        connection = await RawHttp2.open(port, GREETING + call(1, HANG, grpc_timeout="10m"))
        assert b"grpc-status\x014" in await connection.frames_until(HEADERS, 1)
        await until(lambda: echo.cancelled == 1)


async def test_a_server_that_stops_lets_calls_end_and_sends_new_ones_elsewhere() -> None:
    async with echo_server() as (server, echo, port), channel(port) as client:
        gate = asyncio.Event()

        async def messages() -> AsyncIterator[bytes]:
            yield b"before"
            await gate.wait()
            yield b"behind"

        running = method(client, "Each")(messages())
        assert await running.read() == b"before"
        stopping = asyncio.create_task(server.stop(30.0))
        new = method(client, "All")(iter([b"new"]))
        while await new.code() is grpc.StatusCode.OK:  # until the client has heard of it
            new = method(client, "All")(iter([b"new"]))
        assert await new.code() is grpc.StatusCode.UNAVAILABLE
        gate.set()
        assert await running.read() == b"behind"
        assert await running.code() is grpc.StatusCode.OK
        await stopping
        assert (len(server), echo.hanging) == (0, 0)


async def test_calls_on_their_way_to_a_server_that_stops_are_answered() -> None:
    async with echo_server() as (server, _, port):
        clients = [await RawHttp2.open(port) for _ in range(3)]
        for client in clients:
            await client.frames_until(SETTINGS, 0)
        stopping = asyncio.create_task(server.stop(30.0))
        for client in clients:
            ping = await client.frames_until(PING, 0)
            late = call(1, EACH) + frame(DATA, 1, 1, prefixed(b"fox"))
            await client.send(late + frame(PING, ACK, payload=ping) + call(3, EACH))
            assert await client.frames_until(DATA, 1) == prefixed(b"fox")
        for client in clients:
            await client.ended()
        await stopping


async def test_calls_that_do_not_end_in_time_are_told() -> None:
    async with echo_server() as (server, echo, port), channel(port) as client:
        running = method(client, "Hang")(iter([]))
        await running.wait_for_connection()
        await until(lambda: echo.hanging == 1)
        await server.stop(0.05)
        assert (await failure(running)).code() is grpc.StatusCode.UNAVAILABLE
        assert echo.cancelled == 1


async def test_idle_and_old_connections_are_asked_to_go() -> None:
    async with echo_server(idle=0.2) as (server, _, port):
        connection = await RawHttp2.open(port)
        assert await connection.frames_until(GOAWAY, 0) == ALL_TAKEN
        assert await connection.frames_until(PING, 0)  # is not answered
        assert await connection.frames_until(GOAWAY, 0) == bytes(8)
        await connection.ended()
        await until(lambda: len(server) == 0)
    async with echo_server(age=0.2, age_grace=0.2) as (server, echo, port):
        connection = await RawHttp2.open(port, GREETING + call(1, HANG))
        assert await connection.frames_until(GOAWAY, 0) == ALL_TAKEN
        assert echo.hanging == 1
        ping = await connection.frames_until(PING, 0)
        await connection.send(call(3, HANG) + frame(PING, ACK, payload=ping) + call(5, HANG))
        assert await connection.frames_until(GOAWAY, 0) == struct.pack(">II", 3, 0)
        assert await connection.frames_until(RST_STREAM, 5) == struct.pack(">I", 7)  # refused: may be tried elsewhere
        assert echo.hanging <= 2
        await connection.ended()
        await until(lambda: echo.cancelled == 2)


async def test_silent_connections_are_pinged_and_dead_ones_end() -> None:
    async with echo_server(ping_after=0.2, ping_answer=0.3) as (server, _, port):
        live, dead = await RawHttp2.open(port), await RawHttp2.open(port)
        for _ in range(2):
            ping = await live.frames_until(PING, 0)
            await live.send(frame(PING, ACK, payload=ping))
        await dead.ended()
        assert len(server) == 1


async def test_more_calls_than_allowed_are_refused_and_others_go_on() -> None:
    async with echo_server(max_streams=2) as (_, _, port):
        connection = await RawHttp2.open(port, GREETING + call(1, HANG) + call(3, EACH) + call(5, EACH))
        assert await connection.frames_until(RST_STREAM, 5) == struct.pack(">I", 7)
        await connection.send(frame(DATA, 1, 3, prefixed(b"fox")))
        assert await connection.frames_until(DATA, 3) == prefixed(b"fox")


async def test_who_has_shown_no_key_gets_few_calls_at_once_until_he_has() -> None:
    class Forever(Pace):
        def spend(self, seconds: float) -> float:
            return 3600.0

    async with echo_server() as (server, echo, port):
        server.pace = Forever()
        stranger = await RawHttp2.open(port, GREETING + b"".join(call(number, HANG) for number in range(1, 81, 2)))
        other = await RawHttp2.open(port, GREETING + call(1, HANG))
        await until(lambda: echo.hanging == 5)
        await asyncio.sleep(0.05)
        assert echo.hanging == 5
        host, number = stranger.writer.get_extra_info("sockname")
        server.heard(f"ipv4:{host}:{number}")
        await until(lambda: echo.hanging == 41)
        other.writer.transport.abort()


async def test_whatever_the_sizes_of_the_pieces_that_come() -> None:
    data = GREETING + call(1, EACH) + frame(DATA, 0, 1, prefixed(b"fox")[:3]) + frame(DATA, 1, 1, prefixed(b"fox")[3:])
    async with echo_server() as (_, _, port):
        for size in (1, 7, 1000):
            connection = await RawHttp2.open(port, b"")
            for start in range(0, len(data), size):
                await connection.send(data[start : start + size])
                await asyncio.sleep(0)
            assert await connection.frames_until(DATA, 1) == prefixed(b"fox")
            assert b"grpc-status\x010" in await connection.frames_until(HEADERS, 1)
            connection.writer.transport.abort()
