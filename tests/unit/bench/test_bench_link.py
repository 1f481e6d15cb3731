"""The relay that worsens a network: what passes, what is held back, who hears of a cut."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from bench.chaos.link import DOWN, UP, Link
from tests.support.gateway_rig import until


class Echo:
    """A server that says what it hears."""

    def __init__(self) -> None:
        self.heard = bytearray()
        self.ended = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while piece := await reader.read(1 << 16):
                self.heard += piece
                writer.write(piece)
                await writer.drain()
        except OSError:
            pass
        finally:
            self.ended += 1
            writer.close()


async def ended(reader: asyncio.StreamReader) -> bool:
    """Whether the connection has come to its end, however."""
    try:
        return await reader.read(1) == b""
    except ConnectionError:
        return True


@asynccontextmanager
async def linked() -> AsyncIterator[tuple[Echo, Link, asyncio.StreamReader, asyncio.StreamWriter]]:
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    async with Link(f"127.0.0.1:{server.sockets[0].getsockname()[1]}") as link:
        reader, writer = await asyncio.open_connection(*link.address.split(":"))
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        yield echo, link, reader, writer
        writer.close()
    server.close()


@pytest.mark.parametrize("ways", [(UP,), (DOWN,), ()])
async def test_what_a_silent_way_holds_back_comes_when_it_is_healed(ways: tuple[str, ...]) -> None:
    async with linked() as (echo, link, reader, writer):
        link.silence(*ways)
        writer.write(b"later")
        answer = asyncio.ensure_future(reader.readexactly(5))
        if ways == (DOWN,):
            await until(lambda: echo.heard == b"hellolater")
        done, _ = await asyncio.wait([answer], timeout=0.05)
        assert not done
        link.heal()
        assert await answer == b"later"


async def test_a_cut_ends_both_ends_and_new_connections_pass() -> None:
    async with linked() as (echo, link, reader, _):
        link.cut()
        assert await ended(reader)
        await until(lambda: echo.ended == 1)
        fresh, writer = await asyncio.open_connection(*link.address.split(":"))
        writer.write(b"again")
        assert await fresh.readexactly(5) == b"again"
        writer.close()


async def test_a_half_open_connection_is_silent_until_the_network_is_healed() -> None:
    async with linked() as (echo, link, reader, _):
        link.half_open()
        await until(lambda: echo.ended == 1)
        more = asyncio.ensure_future(ended(reader))
        done, _ = await asyncio.wait([more], timeout=0.05)
        assert not done
        link.heal()
        assert await more


async def test_an_armed_link_cuts_in_the_middle() -> None:
    async with linked() as (_, link, reader, writer):
        link.arm(2000)
        writer.write(b"x" * 50_000)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(50_000)
        assert link.cuts == 1


@pytest.mark.parametrize("worsen", [lambda link: link.slow(1e6), lambda link: link.heal()])
async def test_all_bytes_pass_in_order(worsen: Callable[[Link], None]) -> None:
    async with linked() as (_, link, reader, writer):
        worsen(link)
        sent = bytes(range(256)) * 100
        writer.write(sent)
        assert await reader.readexactly(len(sent)) == sent
