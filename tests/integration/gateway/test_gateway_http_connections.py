"""The HTTP port's connections: who has a place when there are too many, and TLS handshakes that don't end."""

import asyncio
import os
import socket
import ssl
from pathlib import Path

import psutil
from tests.support.gateway_rig import text_worker, until
from tests.support.keyed_rig import GET, WHOLE, KeyedRig, keys_file
from tests.support.raw_http import RawConnection
from tests.support.tls_files import write_tls_files

from polyfleet.process.within import Within


async def test_a_full_port_lets_those_go_that_wait_for_nothing(tmp_path: Path) -> None:
    async with KeyedRig(config={"keys_file": keys_file(tmp_path)}, max_connections=20) as rig:
        await rig.add(text_worker("w-1", token_seconds=0.05))
        busy = await rig.open(WHOLE.replace(b'"max_tokens": 3', b'"max_tokens":40'))
        await busy.reader.readuntil(b"data: ")
        silent = [await rig.open(GET[:-2] if number % 2 else b"") for number in range(60)]
        assert (await (await rig.open(GET)).reply())[0] == 200
        assert rig.connections() <= 20
        assert rig.refused("full") >= 40
        assert await silent[0].rest() == b""
        with Within(60):
            assert b"[DONE]" in await busy.reader.readuntil(b"[DONE]")


async def test_an_address_has_its_share(tmp_path: Path) -> None:
    limits = {"max_connections": 20, "max_connections_per_address": 5}
    async with KeyedRig(config={"keys_file": keys_file(tmp_path)}, **limits) as rig:
        other = await RawConnection.open(rig.port, GET[:-2], local_addr=("127.0.0.2", 0))
        half_open = [await rig.open(GET[:-2]) for _ in range(20)]
        assert (await (await rig.open(GET)).reply())[0] == 200
        assert rig.refused("address_full") == 16
        assert await half_open[0].rest() == b""
        await other.send(b"\r\n")
        assert (await other.reply())[0] == 200


async def test_unfinished_tls_handshakes_take_little_memory(tmp_path: Path) -> None:
    cert, key = write_tls_files(tmp_path)
    async with KeyedRig(config={"tls_cert": str(cert), "tls_key": str(key)}) as rig:
        process = psutil.Process(os.getpid())
        before = process.memory_info().rss
        unfinished = [await rig.open(b"\x16\x03\x01") for _ in range(200)]
        await until(lambda: rig.connections() == 200)
        assert process.memory_info().rss - before < 30_000_000  # asyncio's own buffers alone would be 52 MB
        for connection in unfinished:
            connection.abort()


async def test_a_tls_handshake_ends_in_time_or_when_its_place_is_wanted(tmp_path: Path) -> None:
    cert, key = write_tls_files(tmp_path)
    config = {"keys_file": keys_file(tmp_path), "tls_cert": str(cert), "tls_key": str(key)}
    async with KeyedRig(config=config, header_seconds=2.0, max_connections=10) as rig:
        unfinished = [await rig.open(b"\x16\x03\x01") for _ in range(15)]
        context = ssl.create_default_context(cafile=str(cert))
        secure = await RawConnection.open(rig.port, GET, ssl=context)
        assert (await secure.reply())[0] == 200
        secure.abort()
        await until(lambda: rig.connections() == 0)
        assert rig.refused("handshake")
        assert [await connection.rest() for connection in unfinished] == [b""] * 15


async def test_who_comes_at_the_last_moment_is_told_that_it_ends() -> None:
    """In the queue of the port, behind more than are taken at once, when the gateway stops."""
    async with KeyedRig() as rig:
        waiting = []
        for _ in range(40):
            client = socket.create_connection(("127.0.0.1", rig.port))  # no turn of the event loop meanwhile
            client.sendall(WHOLE)
            client.setblocking(False)
            waiting.append(client)
        await rig.gateway.stop()
        loop = asyncio.get_running_loop()
        with Within(60):
            answers = [await loop.sock_recv(client, 1 << 16) for client in waiting]
        assert {answer.split(b"\r\n")[0] for answer in answers} == {b"HTTP/1.1 503 Service Unavailable"}
        for client in waiting:
            client.close()
