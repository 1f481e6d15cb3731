"""Callers who mean harm, each a loop of its own, in a process of their own, until its standard input ends.

python bench/soaking/attacks.py 127.0.0.1:8000 127.0.0.1:50051 headers,slow   # prints how often each one struck
"""

import asyncio
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

from polyfleet.process.within import Within

PATIENCE_SECONDS = 10.0
HALF_OPEN = 200
PROMPT_BYTES = 3_900_000
HEAD = b"POST /v1/%s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
Attack = Callable[[str, str], Awaitable[None]]


async def headers(http: str, grpc: str) -> None:
    """Headers without an end."""
    _, writer = await _open(http)
    try:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
        for _ in range(100):
            writer.write(b"X-A: " + b"a" * 60_000 + b"\r\n")
            with Within(PATIENCE_SECONDS):
                await writer.drain()
    finally:
        writer.close()


async def slow(http: str, grpc: str) -> None:
    """Many connections to both ports that say a little and then nothing."""
    opened = []
    try:
        for number in range(HALF_OPEN):
            _, writer = await _open(grpc if number % 4 == 0 else http)
            opened.append(writer)
            writer.write(b"PRI * HTTP/2.0\r\n" if number % 4 == 0 else b"POST /v1/completions HTT")
        await asyncio.sleep(PATIENCE_SECONDS)
    finally:
        for writer in opened:
            writer.close()


async def prompts(http: str, grpc: str) -> None:
    """Prompts as long as a body may be, of a kind that tokenizers are slow with."""
    await _post(http, b"completions", json.dumps({"prompt": "a" * PROMPT_BYTES, "max_tokens": 1}).encode())


async def words(http: str, grpc: str) -> None:
    """As long, of ordinary words."""
    await _post(
        http, b"completions", json.dumps({"prompt": "the sea " * (PROMPT_BYTES // 8), "max_tokens": 1}).encode()
    )


async def templates(http: str, grpc: str) -> None:
    """Chats of very many turns, which the template has to render."""
    turn = {"role": "user", "content": "x"}
    body = json.dumps({"messages": [turn] * (PROMPT_BYTES // 40), "max_tokens": 1}).encode()
    await _post(http, b"chat/completions", body)


async def bodies(http: str, grpc: str) -> None:
    """A body that is announced and never sent."""
    reader, writer = await _open(http)
    try:
        writer.write(HEAD % (b"completions", PROMPT_BYTES) + b'{"prompt": "')
        with Within(PATIENCE_SECONDS):
            await reader.read()
    finally:
        writer.close()


async def garbage(http: str, grpc: str) -> None:
    """Bytes that mean nothing, to both ports."""
    for address in (http, grpc):
        reader, writer = await _open(address)
        try:
            writer.write(os.urandom(4096))
            with Within(PATIENCE_SECONDS):
                await reader.read()
        finally:
            writer.close()


async def unread(http: str, grpc: str) -> None:
    """A long stream that nobody reads."""
    _, writer = await _open(http)
    body = json.dumps({"prompt": "The sea", "max_tokens": 64, "ignore_eos": True, "stream": True}).encode()
    try:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(HEAD % (b"completions", len(body)) + body)
        await asyncio.sleep(PATIENCE_SECONDS)
    finally:
        writer.close()


ATTACKS: dict[str, Attack] = {
    each.__name__: each for each in (headers, slow, prompts, words, templates, bodies, garbage, unread)
}


async def _open(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def _post(http: str, path: bytes, body: bytes) -> None:
    reader, writer = await _open(http)
    try:
        writer.write(HEAD % (path, len(body)) + body)
        with Within(PATIENCE_SECONDS):
            await reader.readline()
    finally:
        writer.close()


async def _repeat(attack: Attack, http: str, grpc: str, counts: Counter[str], over: asyncio.Event) -> None:
    while not over.is_set():  # being cancelled is not enough: Python 3.11's wait_for may swallow that
        counts[attack.__name__] += 1
        with suppress(OSError, asyncio.TimeoutError):  # being turned away is what should happen
            await attack(http, grpc)
        await asyncio.sleep(0.1)


async def main() -> None:
    """Attack until the standard input ends, then print the counts."""
    http, grpc, names = sys.argv[1:4]
    counts: Counter[str] = Counter()
    over = asyncio.Event()
    loops = [asyncio.ensure_future(_repeat(ATTACKS[name], http, grpc, counts, over)) for name in names.split(",")]
    loop = asyncio.get_running_loop()
    threading.Thread(target=lambda: (sys.stdin.read(), loop.call_soon_threadsafe(over.set)), daemon=True).start()
    await over.wait()
    for each in loops:
        each.cancel()
    await asyncio.gather(*loops, return_exceptions=True)
    print(json.dumps(counts))


if __name__ == "__main__":
    asyncio.run(main())
