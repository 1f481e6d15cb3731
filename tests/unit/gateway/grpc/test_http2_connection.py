"""A connection of HTTP/2 under whatever a client may do to windows, and whatever bytes may come."""

import asyncio
import struct

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.echo_server import EACH, HANG
from tests.support.http2_wire import Wire, in_a_loop
from tests.support.raw_grpc import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    GREETING,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    call,
    fields,
    frame,
    prefixed,
)

from polyfleet.gateway.grpc.http2.call import WINDOW

STREAMS = (1, 3, 5)
SMALL = PREFACE + frame(SETTINGS, payload=struct.pack(">HI", 4, 0))
CONNECTION_START = 65_535
GRANTS = st.lists(
    st.tuples(st.sampled_from(["stream", "connection", "initial"]), st.sampled_from(STREAMS), st.integers(1, 60_000))
)


class Taker:
    """A client that lets its server send so much, and looks whether it keeps to that."""

    def __init__(self, wire: Wire) -> None:
        self.wire, self.initial, self.window = wire, 0, CONNECTION_START
        self.windows = dict.fromkeys(STREAMS, 0)
        self.got = dict.fromkeys(STREAMS, b"")
        self.ended = set[int]()

    async def grant(self, kind: str, stream: int, size: int) -> None:
        if kind == "initial":
            for each in STREAMS:
                self.windows[each] += size - self.initial
            self.initial = size
            await self._take(frame(SETTINGS, payload=struct.pack(">HI", 4, size)))
        elif kind == "connection":
            self.window += size
            await self._take(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", size)))
        else:
            self.windows[stream] += size
            await self._take(frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", size)))

    async def _take(self, data: bytes) -> None:
        await self.wire.feed(data, turns=20)
        for kind, flags, stream, payload in self.wire.frames():
            if kind == DATA:
                self.got[stream] += payload
                self.windows[stream] -= len(payload)
                self.window -= len(payload)
                assert self.window >= 0
                assert self.windows[stream] >= 0
            if kind in {DATA, HEADERS} and flags & 1:
                self.ended.add(stream)


@settings(deadline=None, max_examples=40)
@given(GRANTS, st.lists(st.integers(0, 40_000), min_size=3, max_size=3))
@example([("initial", 1, 60_000)], [40_000, 40_000, 40_000])  # all the connection's window
@example([("initial", 1, 60_000), ("initial", 1, 1)], [40_000, 0, 0])  # less than was sent
def test_every_byte_comes_once_and_in_order_however_windows_open(
    grants: list[tuple[str, int, int]], sizes: list[int]
) -> None:
    async def work() -> None:
        wire = Wire()
        taker, sent = Taker(wire), {}
        await wire.feed(SMALL)
        for stream, size in zip(STREAMS, sizes, strict=True):
            sent[stream] = prefixed(bytes(each * stream % 251 for each in range(size))) + prefixed(b"fox")
            await wire.feed(call(stream, EACH))
            for at in range(0, len(sent[stream]), 16_384):
                piece = sent[stream][at : at + 16_384]
                await wire.feed(frame(DATA, int(at + 16_384 >= len(sent[stream])), stream, piece))
        for kind, stream, size in grants:
            await taker.grant(kind, stream, size)
        await taker.grant("connection", 1, 1_000_000)
        await taker.grant("initial", 1, 1_000_000)
        for stream in STREAMS:
            await taker.grant("stream", stream, 1_000_000)
        assert taker.got == sent
        assert taker.ended == set(STREAMS)
        wire.abort()

    in_a_loop(work)


SESSION = b"".join(
    (
        GREETING,
        call(1, EACH),
        frame(DATA, 0, 1, prefixed(b"fox")),
        call(3, HANG, 0),
        frame(CONTINUATION, END_HEADERS, 3, fields(x_a="1")),
        frame(SETTINGS, payload=struct.pack(">HIHI", 4, 100, 1, 0)),
        frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 1000)),
        frame(DATA, 8, 1, b"\x02" + prefixed(b"") + bytes(2)),
        call(5, "/no", content_length="5"),
        frame(PING, payload=bytes(8)),
        frame(DATA, 1, 5, prefixed(b"")),
        frame(RST_STREAM, 0, 3, bytes(4)),
        frame(HEADERS, END_HEADERS | 1, 1, fields(x_trailer="1")),
        frame(SETTINGS, ACK),
    )
)
Change = tuple[str, int, int, bytes]
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["set", "cut", "insert", "again"]),
        st.integers(0, len(SESSION)),
        st.integers(0, 60),
        st.binary(min_size=1, max_size=12),
    ),
    min_size=1,
    max_size=8,
)


def changed(data: bytes, change: Change) -> bytes:
    kind, at, size, new = change
    before, behind = data[:at], data[at:]
    return {
        "set": before + new + behind[len(new) :],
        "cut": before + behind[size:],
        "insert": before + new + behind,
        "again": before + behind[:size] + behind,
    }[kind]


@settings(deadline=None, max_examples=150)
@given(CHANGES, st.lists(st.integers(0, len(SESSION)), max_size=4), st.booleans())
def test_no_bytes_do_more_than_end_their_connection(changes: list[Change], cuts: list[int], spare: bool) -> None:
    async def work() -> None:
        data = SESSION
        for change in changes:
            data = changed(data, change)
        if spare:  # else most change the preface, or what stands next to it
            data = GREETING + data[len(GREETING) :]
        wire, start = Wire(), 0
        for cut in [*sorted(cuts), len(data)]:
            await wire.feed(data[start : max(start, cut)])
            start = max(start, cut)
        await asyncio.sleep(0)
        held = sum(len(each._parts) for each in wire.connection.calls.values())
        assert held <= WINDOW
        assert len(wire.connection._reader._buffer) <= len(data)
        wire.abort()
        await wire.feed(b"")
        assert not wire.connection.calls
        assert wire.echo.hanging == 0
        assert len(wire.server) == 0

    in_a_loop(work)
