"""Sessions with workers over HTTP/2 of our own, against grpcio's server: messages, ends, certificates."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.support.fleet_certificates import DAY, Roots

from polyfleet.gateway.grpc import workers
from polyfleet.gateway.grpc.http2.client import StreamingCall
from polyfleet.gateway.grpc.workers import SESSION, WorkerDialler
from polyfleet.process.channels import FleetAccess
from polyfleet.process.fleet_tls import FleetTls

LARGE = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


async def echo(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    """What comes, behind the caller's key; `end` ends it."""
    yield dict(context.invocation_metadata())["authorization"].encode()
    async for each in requests:
        if each == b"end":
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "it is full, à l'heure")
        yield each


@asynccontextmanager
async def worker(tls: FleetTls | None = None) -> AsyncIterator[str]:
    """A worker that echoes; its address."""
    server = grpc.aio.server(options=LARGE)
    service, method = SESSION.strip("/").split("/")
    handlers = {method: grpc.stream_stream_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
    if tls:
        port = server.add_secure_port("127.0.0.1:0", tls.server_credentials())
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


class Talk:
    """A session with it."""

    def __init__(self) -> None:
        self.came: asyncio.Queue[bytes] = asyncio.Queue()

    async def open(self, address: str, tls: FleetTls | None = None) -> StreamingCall:
        return await WorkerDialler(FleetAccess("the fleet's", tls))(address, self.came.put_nowait)

    async def next(self, call: StreamingCall) -> bytes:
        """What comes next. Raises ConnectionError with the reason where the call ends."""
        came = asyncio.ensure_future(self.came.get())
        await asyncio.wait((came, call.ended), timeout=30, return_when=asyncio.FIRST_COMPLETED)
        if not came.done():
            came.cancel()
            raise ConnectionError(call.ended.result())
        return came.result()


async def test_messages_of_any_size_go_both_ways_in_order() -> None:
    messages = [b"", b"a", bytes(range(256)) * 400, b"b" * 5_000_000, b"c"]
    async with worker() as address:
        talk = Talk()
        call = await talk.open(address)
        for each in messages:
            call.send(each)
        assert await talk.next(call) == b"Bearer the fleet's"
        assert [await talk.next(call) for _ in messages] == messages
        call.send(b"end")
        assert await call.ended == "it is full, à l'heure"


async def test_a_worker_that_goes_away_ends_the_session() -> None:
    async with worker() as address:
        talk = Talk()
        call = await talk.open(address)
        await talk.next(call)
    assert await call.ended
    with pytest.raises(OSError, match="onnect"):
        await talk.open(address)


async def test_over_tls_each_knows_the_other_by_its_name_and_new_files_are_taken(tmp_path: Path) -> None:
    roots, talk, looks = Roots(), Talk(), itertools.count()
    folder = roots.write(tmp_path / "gateway", "gateway")
    ours = FleetTls(folder, clock=lambda: float(next(looks)))  # so that each time it looks
    async with worker(FleetTls(roots.write(tmp_path / "worker", "worker"))) as address:
        call = await talk.open(address, ours)
        assert await talk.next(call) == b"Bearer the fleet's"
        before = ours.dialling_context()
        roots.write(folder, "gateway")
        assert ours.dialling_context() is not before
        call = await talk.open(address, ours)
        assert await talk.next(call) == b"Bearer the fleet's"
        renewed = ours.dialling_context()
        roots.write(folder, "gateway", begin=-2 * DAY, end=-DAY)  # of no use: the old one is kept
        assert ours.dialling_context() is renewed
        assert await talk.next(await talk.open(address, ours)) == b"Bearer the fleet's"


async def test_who_is_no_worker_of_the_fleet_is_not_spoken_to(tmp_path: Path) -> None:
    roots, strangers = Roots(), Roots("other roots")
    ours = FleetTls(roots.write(tmp_path / "gateway", "gateway"))
    others = [
        FleetTls(strangers.write(tmp_path / "stranger", "worker")),
        FleetTls(roots.write(tmp_path / "scheduler", "scheduler")),
        FleetTls(roots.write(tmp_path / "other", "worker", "other-fleet")),
    ]
    for other in others:
        async with worker(other) as address:
            with pytest.raises(OSError, match=r"^TLS handshake failed: .*verif"):
                await Talk().open(address, ours)


async def test_a_worker_that_does_not_take_our_certificate_says_so(tmp_path: Path) -> None:
    roots, theirs = Roots(), Roots("other roots")
    folder = roots.write(tmp_path / "worker", "worker")
    (folder / "ca.crt").write_bytes((theirs.write(tmp_path / "theirs", "worker") / "ca.crt").read_bytes())
    chain, key, ca = ((folder / name).read_bytes() for name in ("tls.crt", "tls.key", "ca.crt"))
    credentials = grpc.ssl_server_credentials([(key, chain)], ca, require_client_auth=True)
    server = grpc.aio.server()
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        talk = Talk()
        call = await talk.open(f"127.0.0.1:{port}", FleetTls(roots.write(tmp_path / "gateway", "gateway")))
        with pytest.raises(ConnectionError, match="handshake"):
            await talk.next(call)
    finally:
        await server.stop(0)


async def test_one_side_without_tls_ends_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "DIAL_SECONDS", 0.5)
    roots, talk = Roots(), Talk()
    async with worker(FleetTls(roots.write(tmp_path / "worker", "worker"))) as address:
        with pytest.raises(ConnectionError):
            await talk.next(await talk.open(address))
    async with worker() as address:
        with pytest.raises(OSError, match=r"handshake|did not answer|onnection"):
            await talk.open(address, FleetTls(roots.write(tmp_path / "gateway", "gateway")))


@pytest.mark.parametrize("address", ["127.0.0.1:worker", "127.0.0.1:70000", "127.0.0.1"])
async def test_what_is_no_address_is_an_error_of_the_dialling(address: str) -> None:
    with pytest.raises(OSError, match=r"no address|onnect"):
        await Talk().open(address)
