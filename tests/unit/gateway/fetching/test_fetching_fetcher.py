"""Images are fetched whole or not at all, from a server that may do whatever it likes."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Histogram
from tests.support.tls_files import write_tls_files

from polyfleet.gateway.fetching.fetcher import ImageFetcher
from polyfleet.gateway.fetching.hosts import ImageHost
from polyfleet.wire.limits import FieldError

BODY = b"\x89PNG" + bytes(range(256)) * 4
OK = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)


@asynccontextmanager
async def answering(*replies: bytes, tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server whose connections get these replies in turn, the last one again and again; its port and what it read.

    An empty reply is none: the connection stays open.
    """
    heads: list[bytes] = []
    left = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        reply = replies[min(len(heads), len(replies)) - 1]
        writer.write(reply)
        if not reply:
            await left.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1], heads
    finally:
        left.set()
        server.close()


def made(
    *entries: str,
    max_bytes: int = 2048,
    seconds: float = 60,
    addresses: Sequence[str] = (),
    **more: Callable[..., ssl.SSLContext],
) -> tuple[ImageFetcher, CollectorRegistry]:
    """A fetcher, and the registry of its metric; every name has these addresses, an empty one none."""

    async def resolve(host: str, port: int) -> Sequence[str]:
        return addresses or [host]

    registry = CollectorRegistry()
    took = Histogram("fetch", "Of a test.", ("result",), registry=registry)
    hosts = [ImageHost.of(each) for each in entries]
    return ImageFetcher(hosts, max_bytes, seconds, took, resolve, **more), registry


def counted(registry: CollectorRegistry) -> dict[str, float | None]:
    results = ("fetched", "refused", "failed")
    return {each: registry.get_sample_value("fetch_count", {"result": each}) for each in results}


@pytest.mark.parametrize(
    "reply",
    [
        OK,
        b"HTTP/1.0 200 OK\r\n\r\n" + BODY,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY),
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + OK,
    ],
)
async def test_what_is_there_comes(reply: bytes) -> None:
    async with answering(reply) as (port, heads):
        fetcher, registry = made(f"http://127.0.0.1:{port}")
        assert await fetcher.fetch(f"http://127.0.0.1:{port}/a/b.png?c=d#e") == BODY
    lines = heads[0].split(b"\r\n")
    assert lines[0] == b"GET /a/b.png?c=d HTTP/1.1"
    assert b"Host: 127.0.0.1:%d" % port in lines
    assert counted(registry) == {"fetched": 1, "refused": 0, "failed": 0}


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno", "the host answered with status 404"),
        (b"HTTP/1.1 304 Not Modified\r\n\r\n", "the host answered with status 304"),
        (OK[:-1], "the connection ended in the midst of it"),
        (OK[:10], "the connection ended in the midst of it"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "the host does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4000\r\n\r\n" + bytes(4000), "over this server's limit of 2048 bytes"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + bytes(4000), "over this server's limit of 2048 bytes"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000, "over this server's limit of 2048 bytes"),
        (b"HTTP/1.1 302 Found\r\nLocation: /again\r\n\r\n", "redirects more than 3 times"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://10.0.0.1/\r\n\r\n", "redirects to a URL that must be of a host"),
        (b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n", "redirects to a URL that must be of a host"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://[x\r\n\r\n", "redirects to what is no valid URL"),
    ],
)
async def test_what_goes_wrong_is_one_sentence(reply: bytes, problem: str) -> None:
    async with answering(reply) as (port, _):
        fetcher, registry = made(f"http://127.0.0.1:{port}")
        with pytest.raises(FieldError, match=problem):
            await fetcher.fetch(f"http://127.0.0.1:{port}/")
    assert counted(registry) == {"fetched": 0, "refused": 0, "failed": 1}


async def test_redirects_within_the_list_are_followed() -> None:
    redirect = b"HTTP/1.1 301 Moved Permanently\r\nLocation: ../b.png\r\nContent-Length: 0\r\n\r\n"
    async with answering(redirect, OK) as (port, heads):
        fetcher, _ = made(f"http://127.0.0.1:{port}")
        assert await fetcher.fetch(f"http://127.0.0.1:{port}/x/a.png") == BODY
    assert heads[1].startswith(b"GET /b.png ")


async def test_a_silent_server_is_left() -> None:
    async with answering(b"") as (port, _):
        fetcher, _ = made(f"http://127.0.0.1:{port}", seconds=0.05)
        with pytest.raises(FieldError, match=r"took longer than 0\.05 s to fetch"):
            await fetcher.fetch(f"http://127.0.0.1:{port}/")


async def test_a_name_leads_to_no_private_address() -> None:
    async with answering(OK) as (port, heads):
        for addresses in (["127.0.0.1"], ["::1", "::ffff:127.0.0.1"], ["fe80::1%lo"]):
            fetcher, registry = made(f"http://images.example:{port}", addresses=addresses)
            with pytest.raises(FieldError, match=r"no address of images\.example is a public one"):
                await fetcher.fetch(f"http://images.example:{port}/")
        assert not heads
        fetcher, registry = made(f"http://images.example:{port}=127.0.0.0/8", addresses=["10.0.0.1", "127.0.0.1"])
        assert await fetcher.fetch(f"http://images.example:{port}/") == BODY
        with pytest.raises(FieldError, match="operator allows"):
            await fetcher.fetch(f"http://other.example:{port}/")
        assert counted(registry) == {"fetched": 1, "refused": 1, "failed": 0}


async def test_the_next_address_is_tried() -> None:
    async with answering(OK) as (port, _):
        addresses = ["127.0.0.2", "127.0.0.1"]
        fetcher, _ = made(f"http://images.example:{port}=127.0.0.0/8", addresses=addresses)
        assert await fetcher.fetch(f"http://images.example:{port}/") == BODY
        fetcher, _ = made(f"http://images.example:{port}=127.0.0.0/8", addresses=["127.0.0.2"])
        with pytest.raises(FieldError, match="the host could not be reached"):
            await fetcher.fetch(f"http://images.example:{port}/")


async def test_names_that_are_none() -> None:
    took = Histogram("fetch", "Of a test.", ("result",), registry=CollectorRegistry())
    fetcher = ImageFetcher([ImageHost.of("*.invalid")], 10, 60, took)
    for name in ("a" * 64 + ".invalid", "a..invalid"):
        with pytest.raises(FieldError, match="the host could not be reached"):
            await fetcher.fetch(f"https://{name}/")


async def test_certificates_are_checked(tmp_path: Path) -> None:
    certificate, key = write_tls_files(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    async with answering(OK, tls=tls) as (port, _):
        trusts = partial(ssl.create_default_context, cafile=str(certificate))
        for name, certificates, problem in (
            ("localhost", trusts, ""),
            ("other.example", trusts, "mismatch"),
            ("localhost", ssl.create_default_context, "self"),
        ):
            fetcher, _ = made(f"{name}:{port}=127.0.0.1", addresses=["127.0.0.1"], certificates=certificates)
            if not problem:
                assert await fetcher.fetch(f"https://{name}:{port}/") == BODY
                continue
            with pytest.raises(FieldError, match=f"could not be fetched: .*{problem}"):
                await fetcher.fetch(f"https://{name}:{port}/")


async def test_without_hosts_nothing_is_fetched() -> None:
    fetcher, _ = made()
    with pytest.raises(FieldError, match=r"must be a data URL, .*: this server fetches no images"):
        await fetcher.fetch("https://images.example/a.png")
