"""The HTTP port against callers who send too much, too slowly, or nothing at all; none of them has a key."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from tests.support.gateway_rig import text_worker, until
from tests.support.keyed_rig import AUTHORIZED, BODY, GET, POST, WHOLE, KeyedRig, keys_file


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[KeyedRig]:
    """Patience enough for what a test does not try."""
    async with KeyedRig(config={"keys_file": keys_file(tmp_path)}) as rig:
        await rig.add(text_worker("w-1"))
        yield rig


@pytest.fixture
async def hasty(tmp_path: Path) -> AsyncIterator[KeyedRig]:
    """Little patience."""
    limits = {"header_seconds": 0.3, "body_seconds": 0.3, "idle_seconds": 0.3, "stall_seconds": 0.3}
    async with KeyedRig(config={"keys_file": keys_file(tmp_path)}, **limits) as rig:
        await rig.add(text_worker("w-1"))
        yield rig


async def test_headers_without_end_are_cut_and_take_no_memory(rig: KeyedRig) -> None:
    async def bomb(head: bytes) -> None:
        connection = await rig.open(head)
        for _ in range(50):
            if not await connection.send(b"a" * 1_000_000):
                return
        assert (await connection.rest()).startswith(b"HTTP/1.1 431 ")

    heads = [
        b"GET /v1/models HTTP/1.1\r\nX-A: ",
        b"GET /",
        b"GET / HTTP/1.1\r\nX",
        b"GET / HTTP/1.1\r\nX: y\r\nCookie: ",
    ]
    await bomb(heads[0])  # what is made once is made now
    process = psutil.Process(os.getpid())
    before = process.memory_info().rss
    await asyncio.gather(*(bomb(head) for head in heads + heads[:2]))  # 300 MB in all
    assert process.memory_info().rss - before < 20_000_000
    assert rig.refused("header_size") == 7
    await until(lambda: rig.connections() == 0)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200,
        b"GET / HTTP/1.1\r\n" + b"A: %s\r\n" % (b"b" * 60_000) * 2,
        b"GET /%s HTTP/1.1\r\n" % (b"b" * 70_000),
        WHOLE.split(b"Content-Length")[0] + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n" + b"T: t\r\n" * 200,
    ],
    ids=["headers", "bytes", "path", "trailers"],
)
async def test_a_head_over_the_limit_is_431(rig: KeyedRig, sent: bytes) -> None:
    assert await (await rig.open(sent)).error() == 431


async def test_a_head_within_the_limit_is_read_however_it_is_cut(rig: KeyedRig) -> None:
    connection = await rig.open()
    head = GET[:-2] + b"Cookie: %s\r\n\r\n" % (b"c" * 60_000)
    for start in range(0, len(head), 7_000):
        assert await connection.send(head[start : start + 7_000])
        await asyncio.sleep(0.005)
    assert (await connection.reply())[0] == 200


@pytest.mark.parametrize(
    "garbage", [b"\x16\x03\x01\x02\x00\x01", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"G\x00T / HTTP/1.1\r\n"]
)
async def test_what_is_no_http_is_400_and_no_line_in_the_log(
    rig: KeyedRig, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert await (await rig.open(garbage)).error() == 400
    assert not caplog.records


async def test_no_key_is_401_before_the_body(rig: KeyedRig) -> None:
    for expect in (b"", b"Expect: 100-continue\r\n"):
        connection = await rig.open(POST + expect + b"Content-Length: 1000000\r\n\r\n{")
        assert await connection.error() == 401
    connection = await rig.open(POST + b"Transfer-Encoding: chunked\r\n\r\n")
    assert await connection.error() == 401


async def test_an_announced_body_over_the_limit_is_413_before_it_comes(rig: KeyedRig) -> None:
    connection = await rig.open(AUTHORIZED + b"Content-Length: 99999999\r\nExpect: 100-continue\r\n\r\n")
    assert await connection.error() == 413


async def test_the_answer_reaches_a_client_that_goes_on_sending(rig: KeyedRig) -> None:
    connection = await rig.open(POST + b"Content-Length: 90000000\r\n\r\n")
    for _ in range(20):
        await connection.send(b"a" * 10_000)
    assert (await connection.rest()).startswith(b"HTTP/1.1 401 ")


async def test_not_everything_behind_an_answer_is_taken(rig: KeyedRig) -> None:
    connection = await rig.open(POST + b"Content-Length: 90000000\r\n\r\n")
    sent = 0
    while await connection.send(b"a" * 100_000):
        sent += 1
    assert sent < 200  # 20 MB, most of it on its way


async def test_bodies_without_a_key_take_no_memory(rig: KeyedRig) -> None:
    async def body() -> None:
        connection = await rig.open(POST + b"Content-Length: 90000000\r\n\r\n")
        while await connection.send(b"a" * 100_000):
            pass

    await body()
    process = psutil.Process(os.getpid())
    before = process.memory_info().rss
    for _ in range(20):
        await asyncio.gather(*(body() for _ in range(10)))
    assert process.memory_info().rss - before < 20_000_000


async def test_a_continue_is_sent_to_those_who_wait_for_it(rig: KeyedRig) -> None:
    connection = await rig.open(WHOLE.removesuffix(b"\r\n\r\n" + BODY) + b"\r\nExpect: 100-continue\r\n\r\n")
    assert await connection.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    await connection.send(BODY)
    assert (await connection.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")


async def test_chunk_extensions_without_end_are_cut(rig: KeyedRig) -> None:
    connection = await rig.open(AUTHORIZED + b"Transfer-Encoding: chunked\r\n\r\n1;")
    for _ in range(20):
        if not await connection.send(b"x" * 10_000):
            break
    assert (await connection.rest()).startswith(b"HTTP/1.1 413 ")


async def test_a_body_in_chunks_of_one_byte_is_taken(rig: KeyedRig) -> None:
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY)
    connection = await rig.open(
        AUTHORIZED + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    )
    assert b"data: [DONE]" in await connection.rest()


async def test_half_a_request_is_408_in_time_and_silence_is_cut(hasty: KeyedRig) -> None:
    assert await (await hasty.open(GET[:-2])).error() == 408
    assert await (await hasty.open(AUTHORIZED + b"Content-Length: 100\r\n\r\n{")).error() == 408
    assert await (await hasty.open()).rest() == b""
    assert await (await hasty.open(b"\r\n\r\n")).rest() == b""
    answered = await hasty.open(GET)
    assert (await answered.reply())[0] == 200
    assert await answered.rest() == b""  # idle
    assert (hasty.refused("header_time"), hasty.refused("body_time")) == (3, 1)
    await until(lambda: hasty.connections() == 0)


async def test_a_byte_now_and_then_buys_no_time(hasty: KeyedRig) -> None:
    connection = await hasty.open(b"GET / HTTP/1.1\r\nX-")
    while not connection.reader.at_eof() and await connection.send(b"a"):
        await asyncio.sleep(0.02)
    assert hasty.refused("header_time") == 1


async def test_requests_may_be_pipelined_but_not_without_end(rig: KeyedRig) -> None:
    connection = await rig.open(GET * 10)
    for _ in range(10):
        assert (await connection.reply())[0] == 200
    await connection.send(GET * 5_000)
    assert (await connection.rest()).count(b"HTTP/1.1 200") < 5_000
    assert rig.refused("pipelined") == 1


async def test_http_1_0_gets_a_body_without_chunks(rig: KeyedRig) -> None:
    answer = await (await rig.open(WHOLE.replace(b"HTTP/1.1", b"HTTP/1.0"))).rest()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert body.startswith(b"data: {")
    assert body.endswith(b"data: [DONE]\n\n")
    assert (await (await rig.open(b"GET /healthz HTTP/1.0\r\n\r\n")).rest()).endswith(b"\r\n\r\nok\n")


async def test_another_protocol_is_not_spoken(rig: KeyedRig, caplog: pytest.LogCaptureFixture) -> None:
    upgrade = GET[:-2] + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    with caplog.at_level(logging.WARNING):
        connection = await rig.open(upgrade + b"\x00\x01frames")
        assert (await connection.reply())[0] == 200
        assert await connection.rest() == b""
    assert not caplog.records


async def test_a_connection_cut_at_any_byte_leaves_no_line_in_the_log(
    rig: KeyedRig, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for length in range(len(WHOLE) + 1):
            connection = await rig.open(WHOLE[:length])
            await connection.writer.drain()
            if length % 2:
                connection.abort()
            else:
                connection.writer.close()
        await until(lambda: rig.connections() == 0 and rig.gateway.ledger.running == 0)
        rig.gateway.ledger.check()
    assert [record.getMessage() for record in caplog.records] == []


async def test_a_client_that_takes_nothing_is_cut(hasty: KeyedRig) -> None:
    connection = await hasty.open()
    connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
    many = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret-a\r\n\r\n"
    while await connection.send(many * 4):
        await asyncio.sleep(0)
    await until(lambda: hasty.connections() == 0)
    assert hasty.refused("stalled") + hasty.refused("pipelined") == 1
