"""Strangers at a gateway's doors: how fast `/healthz` answers meanwhile, and how much the gateway grows.

    python -m bench.doors 127.0.0.1:8000 127.0.0.1:50051 --pid PID --seconds 10

Each attack runs for so long, from a process of its own that has no key, while this one asks for `/healthz` up to a
hundred times a second. Only for gateways of one's own.
"""

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from bench.command import parser_of, positive, run
from bench.report import Row, publish

from polyfleet.benchmark.work import percentile
from polyfleet.process.listening import is_address
from polyfleet.process.within import Within
from polyfleet.wire.auth import split_host_port

Address = tuple[str, int]
Attack = Callable[[Address, Address], Awaitable[None]]
MEGABYTE = b"a" * 1_000_000
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


async def send(address: Address, first: bytes, again: bytes, pause: float = 0.0) -> None:
    """Connect, send `first`, then `again` without end; anew when the gateway ends it."""
    while True:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(*address)
            try:
                writer.write(first)
                while not writer.transport.is_closing():
                    writer.write(again)
                    await writer.drain()
                    await asyncio.sleep(pause)
            finally:
                writer.transport.abort()
        await asyncio.sleep(0.01)


def many(count: int, make: Callable[[Address, Address], Awaitable[None]]) -> Attack:
    """The same from so many connections."""

    async def run(http: Address, grpc: Address) -> None:
        await asyncio.gather(*(make(http, grpc) for _ in range(count)))

    return run


ATTACKS: dict[str, Attack] = {
    "nothing": lambda http, grpc: asyncio.sleep(3600),
    "headers without end": many(4, lambda http, _: send(http, HEALTH[:-2] + b"X: ", MEGABYTE, 0.02)),
    "half-open requests, 1,200": many(1200, lambda http, _: send(http, HEALTH[:-2] + b"X: ", b"a", 1.0)),
    "bodies without a key": many(50, lambda http, _: send(http, POST + b"Content-Length: 4000000\r\n\r\n", MEGABYTE)),
    "chunk extensions": many(
        20, lambda http, _: send(http, POST + b"Transfer-Encoding: chunked\r\n\r\n1;", b"x" * 999)
    ),
    "requests without a key": many(20, lambda http, _: send(http, b"", POST + b"Content-Length: 2\r\n\r\n{}", 0.01)),
    "garbage": many(20, lambda http, _: send(http, b"\x16\x03\x01", b"\x00" * 99, 0.01)),
    "silent HTTP/2, 1,200": many(1200, lambda _, grpc: send(grpc, HTTP2, b"", 1.0)),
    "pings": many(10, lambda _, grpc: send(grpc, HTTP2, b"\x00\x00\x08\x06\x00\x00\x00\x00\x00" + bytes(8), 0.001)),
}


async def healthz(address: Address) -> float:
    """Seconds to an answer on a connection of its own."""
    begin = time.perf_counter()
    reader, writer = await asyncio.open_connection(*address)
    writer.write(HEALTH)
    await reader.readuntil(b"ok\n")
    took = time.perf_counter() - begin
    writer.close()
    return took


def resident(pid: int | None) -> float:
    """MB of the process; 0 where it is not known."""
    if pid is None:
        return 0.0
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) / 1000 for line in status if line.startswith("VmRSS"))


async def measure(
    name: str, http: Address, attack: tuple[str, ...], seconds: float, pid: int | None
) -> AsyncIterator[Row]:
    """One attack (a command)."""
    before = resident(pid)
    process = await asyncio.create_subprocess_exec(*attack)
    times, failed, end = [], 0, time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            with Within(10):
                times.append(await healthz(http))
        except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
            failed += 1
        await asyncio.sleep(0.01)
    grown = resident(pid) - before
    process.kill()
    await process.wait()
    for share in (0.5, 0.99):
        yield Row(f"{name}, p{100 * share:.0f}", 1000 * percentile(times, share) if times else None, "ms")
    yield Row(f"{name}, failed", failed, f"of {len(times) + failed}")
    if pid is not None:
        yield Row(f"{name}, grown", grown, "MB")


def address_of(text: str) -> Address:
    """Host and port."""
    if not is_address(text, 1):
        raise argparse.ArgumentTypeError(f"{text}: give host:port")
    host, port = split_host_port(text)
    return host, int(port)


async def attack(chosen: Attack, http: Address, grpc: Address) -> None:
    """Without end."""
    await chosen(http, grpc)


async def all_rows(given: argparse.Namespace) -> list[Row]:
    """One attack after the other."""
    found = list[Row]()
    for name in ATTACKS:
        ports = (f"{host}:{port}" for host, port in (given.http, given.grpc))
        command = (sys.executable, "-m", "bench.doors", *ports, "--attack", name)
        found += [row async for row in measure(name, given.http, command, given.seconds, given.pid)]
    return found


def main() -> None:
    """Attack and print."""
    parser = parser_of(__doc__)
    parser.add_argument("http", type=address_of, help="host:port of the gateway")
    parser.add_argument("grpc", type=address_of, help="its gRPC port")
    parser.add_argument("--pid", type=int, help="of the gateway, to tell how much it grows")
    parser.add_argument("--attack", choices=tuple(ATTACKS), help="run this one without end, and measure nothing")
    parser.add_argument("--seconds", type=positive, default=10, help="for each attack (default: 10)")
    given = parser.parse_args()
    if given.attack:
        asyncio.run(attack(ATTACKS[given.attack], given.http, given.grpc))
    else:
        publish(asyncio.run(all_rows(given)), given.json)


if __name__ == "__main__":
    run(main)
