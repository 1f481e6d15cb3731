"""Server-sent events to one client: the headers at once, and a comment whenever there is nothing else to say."""

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import msgspec
from starlette.types import Send

from polyfleet.process.tasks import end

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # tells proxies such as nginx to pass each event on at once
]
COMMENT = b": nothing yet\n\n"  # readers of event streams leave it out; proxies see that the stream lives


class EventStream:
    """`async with` sends the headers; inside, a comment follows each `comment_seconds` without an event.

    Call `end` once, as the last; leaving without it breaks the body off.
    """

    def __init__(self, send: Send, comment_seconds: float) -> None:
        self._send = send
        self._comment_seconds = comment_seconds
        self._last = 0.0  # when something was sent
        self._commenter: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "EventStream":
        await self._send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        self._last = asyncio.get_running_loop().time()
        self._commenter = asyncio.create_task(self._comment())
        return self

    async def write(self, events: bytes) -> None:
        """Send these events."""
        await self._write(events)

    async def comment(self) -> None:
        """Send a comment now."""
        await self._write(COMMENT)

    async def end(self, rest: bytes) -> None:
        """Send these events, and the end of the body behind them."""
        await self._hush()
        await self._send({"type": "http.response.body", "body": rest, "more_body": False})

    async def _write(self, body: bytes) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": True})
        self._last = asyncio.get_running_loop().time()

    async def _comment(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._last + self._comment_seconds - loop.time())
            if loop.time() - self._last >= self._comment_seconds:
                await self.comment()

    async def _hush(self) -> None:
        if self._commenter is not None:
            await end(self._commenter)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._hush()


def event(data: bytes) -> bytes:
    """One event."""
    return b"data: " + data + b"\n\n"


def named_event(kind: str, fields: Mapping[str, Any]) -> bytes:
    """One event that says its kind, in front and among its fields."""
    return b"event: " + kind.encode() + b"\n" + event(msgspec.json.encode({"type": kind, **fields}))
