"""uvicorn's HTTP/1.1 protocol with bounds: on a request's head, its body, the time for each, and on what is unread.

    head ──headers complete──▶ body ──message complete──▶ (answer) ──answer complete──▶ next ──first byte──▶ head

A timer bounds each state, another one the answer, which may overlap with the next request. What goes over a bound
gets its status where an answer is still possible, and the connection ends.
"""

import asyncio
import time
from collections.abc import Callable
from enum import Enum, unique
from functools import partial
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from polyfleet.gateway.begins import Begins
from polyfleet.gateway.config import Limits
from polyfleet.gateway.http.connection.refusals import (
    BODY_LATE,
    HEAD_LATE,
    MALFORMED,
    MAX_PIPELINED,
    PIPELINED,
    Refusal,
    Refused,
)
from polyfleet.gateway.http.connection.request_size import RequestSize
from polyfleet.gateway.http.connection.transport import LingeringTransport
from polyfleet.gateway.pace import Pace
from polyfleet.gateway.ports.doors import Doors, Visit

UNREAD_BYTES = 1 << 18  # that a client may send behind the answer which ends its connection
QUICK_SECONDS = 0.0005  # what takes longer to parse, as chunks of one byte do, is paced
GRACE_SECONDS = 1.0  # for the status DEADLINE_EXCEEDED to reach a client that reads


@unique
class Awaiting(Enum):
    """What the connection waits for its client to send."""

    HEAD = "head"
    BODY = "body"
    NEXT = "next"


class BoundedProtocol(HttpToolsProtocol):
    """One connection, which has come in through `doors` as `visit`."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        *,
        limits: Limits,
        doors: Doors,
        visit: Visit,
        pace: Pace,
        begins: Begins,
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._limits = limits
        self._doors = doors
        self._visit = visit
        self._pace = pace
        self._begins = begins
        self._seconds = {
            Awaiting.HEAD: limits.header_seconds,
            Awaiting.BODY: limits.body_seconds,
            Awaiting.NEXT: limits.idle_seconds,
        }
        self._awaiting = Awaiting.HEAD
        self._timer: asyncio.TimerHandle | None = None  # for what is awaited
        self._answer_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._size = RequestSize(limits)
        self._unasked = False  # its headers have come just now, and its body not
        self._over = False  # nothing is parsed any more
        self._unread_bytes = 0  # that came since

    # The transport's side.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        self._visit.close = transport.abort
        self._lingering = LingeringTransport(transport, lambda: self._size.incoming or self._over)
        super().connection_made(self._lingering)  # type: ignore[arg-type]
        self._await(Awaiting.HEAD)

    def connection_lost(self, exc: Exception | None) -> None:
        """Everything of it ends."""
        for timer in (self._timer, self._answer_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        self._over = True
        self._lingering.closed()
        self._doors.leave(self._visit)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client takes nothing; it has to, in time."""
        super().pause_writing()
        self._watch_stall(0)

    def resume_writing(self) -> None:
        """It has."""
        super().resume_writing()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        self._rest()

    def _watch_stall(self, before: int) -> None:
        """`before`: bytes that waited for the client at the last look."""
        waiting = self.transport.get_write_buffer_size()
        if before and waiting >= before:
            self._cut("stalled")
        else:
            self._stall_timer = self.loop.call_later(self._limits.stall_seconds, self._watch_stall, waiting)

    def data_received(self, data: bytes) -> None:
        """Parse it, unless the connection is about to end."""
        if self._over or self.transport.is_closing():
            self._unread_bytes += len(data)
            if self._unread_bytes > UNREAD_BYTES:
                self.transport.abort()
            return
        if self._timer is None or self._awaiting is Awaiting.NEXT:
            self._await(Awaiting.HEAD)
        begin = time.thread_time()
        self._take(data)
        if (took := time.thread_time() - begin) > QUICK_SECONDS and not self.transport.is_closing():
            self._lingering.rest(self._pace.spend(took))

    def _take(self, data: bytes) -> None:
        try:
            self._size.feed(data, self.parser.feed_data)
            if self._unasked:
                self._unasked = False
                self.flow.pause_reading()  # until the application, which looks for a key first, wants the body
        except httptools.HttpParserUpgrade:
            self.cycle.keep_alive = False  # no other protocol is spoken here: the request is answered, and that's all
            self._over = True
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._refuse(cause.refusal if isinstance(cause, Refused) else MALFORMED)
        except Refused as error:
            self._refuse(error.refusal)

    def shutdown(self) -> None:
        """The server ends: an answer that has begun may end, everything else is over."""
        super().shutdown()
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()

    # The parser's side.

    def on_message_begin(self) -> None:
        """A request begins."""
        self._size.begin()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A part of the request's line."""
        self._size.url(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer, which nobody wants."""
        self._size.header(name, value)
        if self._size.in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Hand the request to the application."""
        if len(self.pipeline) >= MAX_PIPELINED:
            raise Refused(PIPELINED)
        self._size.begin_body()
        self._unasked = True
        self._await(Awaiting.BODY)
        self._doors.busy(self._visit)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._size.body(len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request has come whole."""
        self._size.end()
        self._unasked = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        super().on_message_complete()
        if not self.pipeline and not self.cycle.response_complete:
            self._time_answer(self._limits.max_request_seconds)
        self._rest()

    # The application's side.

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        async def bounded(scope: Any, receive: Any, send: Any) -> None:
            await app(scope, receive, _send_for(cycle, scope["http_version"] == "1.0"))

        self._time_answer(self._limits.body_seconds + self._limits.max_request_seconds)
        self._begins.add(partial(super()._start_asgi_task, cycle, bounded))

    def _time_answer(self, seconds: float) -> None:
        """The client has to take the whole answer within so much from now."""
        if self._answer_timer is not None:
            self._answer_timer.cancel()
        self._answer_timer = self.loop.call_later(seconds + GRACE_SECONDS, self._cut, "deadline")

    def on_response_complete(self) -> None:
        """Go on with the next request, or wait for it."""
        if self._answer_timer is not None:
            self._answer_timer.cancel()
        super().on_response_complete()
        self._unset_keepalive_if_required()  # ours runs instead
        self._rest()

    def _rest(self) -> None:
        """Wait for the next request, if none is under way and the client has taken the last answer."""
        answered = self.cycle is not None and self.cycle.response_complete
        if answered and not self._size.incoming and not self.flow.write_paused and not self._over:
            self._doors.wait(self._visit)
            self._await(Awaiting.NEXT)

    # Bounds.

    def _await(self, what: Awaiting) -> None:
        self._awaiting = what
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(self._seconds[what], self._late)

    def _late(self) -> None:
        answering = self.cycle is not None and not self.cycle.response_complete
        if (
            self._lingering.resting
            or self.flow.read_paused
            or (answering and (self._awaiting is Awaiting.HEAD or self.pipeline))
        ):
            self._await(self._awaiting)  # it is we who keep the client waiting
        elif self._awaiting is Awaiting.NEXT:
            self.transport.close()
        elif self._size.in_head:
            self._refuse(HEAD_LATE)
        elif self._awaiting is Awaiting.BODY:
            self._refuse(BODY_LATE)
        else:
            self._cut(HEAD_LATE.reason)  # nothing has come, and nothing is to be answered

    def _cut(self, reason: str) -> None:
        """End the connection without an answer."""
        self._doors.refuse(reason)
        self.transport.abort()

    def _refuse(self, refusal: Refusal) -> None:
        """Answer with a status, if no other answer has begun, and end the connection."""
        self._over = True
        self._doors.refuse(refusal.reason)
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if cycle.response_started or self.pipeline:
                self.transport.abort()
                return
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.write(refusal.reply(self.server_state.default_headers))
        self.transport.close()


def _send_for(cycle: Any, http_1_0: bool) -> Callable[[Any], Any]:
    """The application's `send`: a body that still comes when its answer begins is not read, and ends the connection.

    HTTP/1.0 knows no chunks: there the end of the connection is the end of the answer.
    """

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            if cycle.more_body:
                cycle.keep_alive = False
            if http_1_0:
                cycle.chunked_encoding = False
        elif http_1_0:
            cycle.expected_content_length = len(message.get("body", b""))
        await cycle.send(message)

    return send
