"""Strangers at a gateway's doors: how fast `/healthz` answers meanwhile, and how much the gateway grows.

    python bench/doors.py 127.0.0.1:8000 127.0.0.1:50051 --pid PID --seconds 10

Each attack runs for so long, from a process of its own that has no key, while this one asks for `/healthz` up to a
hundred times a second. Prints one line an attack; only for gateways of one's own.
"""

import asyncio
import contextlib
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

import click

from polyfleet.process.within import Within

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


async def measure(name: str, http: Address, attack: tuple[str, ...], seconds: float, pid: int | None) -> None:
    """One attack (a command), one line."""
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
    p50, p99 = (1000 * statistics.quantiles(times, n=100)[at] for at in (49, 98))
    print(
        f"{name:28} p50 {p50:6.1f} ms  p99 {p99:6.1f} ms  of {len(times)}, failed {failed}, grown {grown:.0f} MB",
        flush=True,
    )


@click.command()
@click.argument("http")
@click.argument("grpc")
@click.option("--pid", type=int, help="Of the gateway, to tell how much it grows.")
@click.option("--attack", type=click.Choice(list(ATTACKS)), help="Run this one without end, and measure nothing.")
@click.option("--seconds", default=10.0, show_default=True, help="For each attack.")
def main(http: str, grpc: str, pid: int | None, attack: str | None, seconds: float) -> None:
    """Attack the gateway at HTTP and GRPC (host:port each)."""
    there = [(host, int(port)) for host, _, port in (each.rpartition(":") for each in (http, grpc))]

    async def run() -> None:
        if attack is not None:
            await ATTACKS[attack](there[0], there[1])
        for name in ATTACKS:
            command = (sys.executable, __file__, http, grpc, "--attack", name)
            await measure(name, there[0], command, seconds, pid)

    asyncio.run(run())


if __name__ == "__main__":
    main()
