"""Closed loops of streams, in bytes: clients that cost little beside what they measure."""

import asyncio
import json
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import grpc
from bench.gateway.far_end import GENERATE, MODEL, TOKENS

from polyfleet.v1 import inference_pb2 as pb
from polyfleet.wire.auth import bearer_metadata

KEY = "bench"
PROMPT = "The quick brown fox jumps over the lazy dog."
REQUEST = pb.GenerateRequest(model=MODEL, text=PROMPT, max_tokens=TOKENS, ignore_eos=True).SerializeToString()
CLIENTS_PER_CONNECTION = 8
SEED = 1  # so that all contenders get the same load


class Came(NamedTuple):
    """One whole stream: the seconds to its first token, and its messages, fewer than tokens where some were merged."""

    first: float
    messages: int


Stream = Callable[[], Awaitable[Came]]  # raises ValueError where one is not whole


class Load(NamedTuple):
    """What came of some seconds."""

    streams: int
    messages: int
    first_seconds: float  # to a stream's first token, the median


class GrpcStreams:
    """`Generate`, over so many connections, which go to the addresses in turn."""

    def __init__(self, addresses: Sequence[str], connections: int) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        each = (addresses[at % len(addresses)] for at in range(connections))
        self._channels: list[Any] = [grpc.aio.insecure_channel(address, options=options) for address in each]
        self._calls = [channel.unary_stream(GENERATE) for channel in self._channels]
        self._turn = 0

    async def one(self) -> Came:
        """See Stream."""
        self._turn += 1
        began, first, messages = time.monotonic(), 0.0, 0
        call = self._calls[self._turn % len(self._calls)](REQUEST, metadata=bearer_metadata(KEY), timeout=60)
        while isinstance(await call.read(), bytes):
            first = first or time.monotonic() - began
            messages += 1
        if await call.code() is not grpc.StatusCode.OK:
            raise ValueError(f"{messages} messages came, then {await call.code()}: {await call.details()}")
        return Came(first, messages)

    async def close(self) -> None:
        """Give the connections back."""
        await asyncio.gather(*(channel.close() for channel in self._channels))


class HttpStreams:
    """`POST /v1/completions` with `stream`, a connection each."""

    def __init__(self, address: str) -> None:
        self._host, port = address.split(":")
        self._port = int(port)
        body = {"model": MODEL, "prompt": PROMPT, "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
        encoded = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(encoded)}\r\n\r\n"
        self._request = head.encode() + encoded
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def one(self) -> Came:
        """See Stream."""
        began, first = time.monotonic(), 0.0
        reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection(self._host, self._port)
        writer.write(self._request)
        body = b""
        while not body.endswith(b"0\r\n\r\n"):
            if not (data := await reader.read(1 << 16)):
                raise ValueError(f"the connection ended behind {body[-200:]!r}")
            body += data
            if not b"HTTP/1.1 200".startswith(body[:12]):  # an error's body need not end in a last chunk
                raise ValueError(f"it answered {body[:200]!r}")
            if not first and b"data:" in body:
                first = time.monotonic() - began
        if b"data: [DONE]" not in body:
            raise ValueError(f"not all came: {body[:200]!r} … {body[-200:]!r}")
        self._idle.append((reader, writer))
        return Came(first, body.count(b"data:") - 1)

    async def close(self) -> None:
        """Give the connections back."""
        for _, writer in self._idle:
            writer.close()


async def drive(stream: Stream, clients: int, seconds: float, gap: float, phases: float = 0.0) -> Load:
    """So many clients, each one stream after another, with a pause of up to `gap`, the time between two tokens.

    Their first streams begin at any time within `phases` and a gap. Where that is a stream's length they stay spread,
    as all streams are as long; where it is 0 they begin together and end in one step, and only chance parts them.
    """
    came, began, pauses = list[Came](), time.monotonic(), random.Random(SEED)

    async def client() -> None:
        await asyncio.sleep(pauses.uniform(0, phases))
        while True:
            await asyncio.sleep(pauses.uniform(0, gap))
            came.append(await stream())
            if time.monotonic() - began >= seconds:
                return

    await asyncio.gather(*(client() for _ in range(clients)))
    return Load(len(came), sum(each.messages for each in came), statistics.median(each.first for each in came))
