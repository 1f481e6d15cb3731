"""StreamingCall: a call's two streams of messages, whatever the peer's frames and windows are."""

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyfleet.gateway.grpc.http2 import frames
from polyfleet.gateway.grpc.http2.client import WINDOW, StreamingCall
from polyfleet.gateway.grpc.http2.frames import frame, header_frames
from polyfleet.gateway.grpc.http2.hpack import Header
from polyfleet.gateway.grpc.http2.reading import FrameReader

ANSWER = header_frames(1, ((b":status", b"200"), (b"content-type", b"application/grpc")), end=False)
GREETING = frame(frames.SETTINGS) + frame(frames.SETTINGS, frames.ACK) + ANSWER


class Peer:
    """The transport, and a server's view of what is written to it."""

    sated = False

    def __init__(self, max_bytes: int = 1000, fail: Exception | None = None) -> None:
        self.headers_came: list[Header] = []
        self.came, self.updates, self.controls = bytearray(), dict[int, int](), list[tuple[int, int, bytes]]()
        self.sizes: list[int] = []
        self.messages: list[bytes] = []
        self.aborted = False
        self._fail = fail
        self._reader = FrameReader(self)
        self.call = StreamingCall("/a.B/C", (("authorization", "Bearer x"),), self._received, max_bytes)
        self.call.connection_made(cast(asyncio.Transport, FakeTransport(self)))

    def _received(self, message: bytes) -> None:
        if self._fail:
            raise self._fail
        self.messages.append(message)

    def write(self, data: bytes) -> None:
        self._reader.feed(data)

    def begun(self) -> None:
        pass

    def data(self, stream: int, data: bytes, size: int, *, end: bool) -> None:
        assert (stream, end) == (1, False)
        self.sizes.append(size)
        self.came += data

    def headers(self, stream: int, headers: tuple[Header, ...], *, end: bool) -> None:
        assert (stream, end) == (1, False)
        self.headers_came += headers

    def control(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == frames.WINDOW_UPDATE:
            self.updates[stream] = self.updates.get(stream, 0) + int.from_bytes(payload, "big")
        else:
            self.controls.append((kind, flags, payload))

    async def answers(self, data: bytes) -> None:
        self.call.data_received(data)
        await asyncio.sleep(0)  # what it says to that is sent with the turn

    @property
    def why(self) -> str:
        return self.call.ended.result()


class FakeTransport(asyncio.Transport):
    def __init__(self, peer: Peer) -> None:
        super().__init__({"peername": ("::1", 50, 0, 0)})
        self._peer = peer

    def write(self, data: Any) -> None:
        self._peer.write(bytes(data))

    def is_closing(self) -> bool:
        return self._peer.aborted

    def abort(self) -> None:
        self._peer.aborted = True


def packed(*messages: bytes) -> bytes:
    return b"".join(b"\x00" + len(each).to_bytes(4, "big") + each for each in messages)


def pieces(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return (data[a:b] for a, b in pairwise(edges))


def trailers(*headers: Header) -> bytes:
    return header_frames(1, headers, end=True)


async def test_it_calls_as_grpc_does() -> None:
    peer = Peer()
    await peer.answers(GREETING)
    assert peer.headers_came == [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/a.B/C"),
        (b":authority", b"[::1]:50"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"authorization", b"Bearer x"),
    ]
    own = frames.read_settings(0, peer.controls[0][2])
    assert (own[frames.ENABLE_PUSH], own[frames.INITIAL_WINDOW_SIZE]) == (0, WINDOW)
    assert peer.updates == {0: WINDOW - frames.DEFAULT_WINDOW}
    assert (frames.SETTINGS, frames.ACK, b"") in peer.controls


async def test_a_ping_is_answered_and_an_answer_is_not() -> None:
    peer = Peer()
    await peer.answers(GREETING + frame(frames.PING, payload=b"12345678"))
    await peer.answers(frame(frames.PING, frames.ACK, payload=b"87654321"))
    assert [each for each in peer.controls if each[0] == frames.PING] == [(frames.PING, frames.ACK, b"12345678")]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=8), st.lists(st.integers(0, 5000), max_size=8), st.integers(1, 2000))
def test_messages_come_whole_and_in_order_in_whatever_pieces(messages: list[bytes], cuts: list[int], size: int) -> None:
    async def run() -> None:
        peer, data = Peer(), packed(*messages)
        parts = [frames.data_frame(1, data[at : at + size]) for at in range(0, len(data), size)]
        for piece in pieces(GREETING + b"".join(parts), cuts):
            await peer.answers(piece)
        assert peer.messages == messages
        assert not peer.call.ended.done()

    asyncio.run(run())


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.binary(min_size=1).map(lambda each: each * 5000), max_size=6),
    st.lists(st.tuples(st.sampled_from([0, 1]), st.integers(1, 90_000)), max_size=12),
    st.integers(0, 100_000),
)
def test_no_more_is_sent_than_the_peer_takes_and_all_of_it_in_the_end(
    messages: list[bytes], updates: list[tuple[int, int]], initial: int
) -> None:
    async def run() -> None:
        peer, data, room = Peer(), packed(*messages), {0: frames.DEFAULT_WINDOW, 1: initial}
        changed = frames.settings({frames.INITIAL_WINDOW_SIZE: initial})
        await peer.answers(changed)
        for message in messages:
            peer.call.send(message)
        for stream, size in updates:
            await asyncio.sleep(0)
            assert len(peer.came) == min(len(data), *room.values())
            room[stream] += size
            await peer.answers(frames.window_update(stream, size))
        for stream in (0, 1):
            await peer.answers(frames.window_update(stream, len(data) + 1))
        assert peer.came == data
        assert max(peer.sizes, default=0) <= frames.MAX_FRAME_BYTES

    asyncio.run(run())


async def test_a_window_that_shrinks_below_nothing_is_made_up_for_first() -> None:
    peer = Peer()
    await peer.answers(GREETING)
    peer.call.send(bytes(995))
    await asyncio.sleep(0)
    await peer.answers(frames.settings({frames.INITIAL_WINDOW_SIZE: 10}))  # 990 bytes were sent beyond it
    peer.call.send(bytes(5))
    await peer.answers(frames.window_update(1, 990))
    assert len(peer.came) == 1000
    await peer.answers(frames.window_update(1, 10))
    assert len(peer.came) == 1010


async def test_a_peer_that_does_not_read_is_sent_nothing_more() -> None:
    peer = Peer()
    await peer.answers(GREETING)
    peer.call.pause_writing()
    peer.call.send(b"later")
    await asyncio.sleep(0)
    assert not peer.came
    peer.call.resume_writing()
    await asyncio.sleep(0)
    assert peer.came == packed(b"later")


async def test_what_came_is_given_back_to_the_connection_and_to_the_call() -> None:
    peer, each = Peer(max_bytes=1 << 20), frames.data_frame(1, packed(bytes(9_995)))
    await peer.answers(GREETING)
    peer.updates.clear()
    for _ in range(100):
        await peer.answers(each)
    assert len(peer.messages) == 100
    assert peer.updates[0] == peer.updates[1]
    assert 0 <= 1_000_000 - peer.updates[0] < WINDOW // 2


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (GREETING + trailers((b"grpc-status", b"0")), "the worker ended the session"),
        (GREETING + trailers((b"grpc-status", b"14"), (b"grpc-message", b"gone%20%C3%A0 l")), "gone à l"),
        (GREETING + trailers((b"grpc-status", b"14")), "it answered with status 14"),
        (GREETING + frames.reset(1, frames.Problem.CANCEL), "the worker reset the session, HTTP/2's code 8"),
        (GREETING + frames.data_frame(1, b"\x01" + packed(b"abc")[1:]), "a message is compressed"),
        (GREETING + frames.data_frame(1, packed(bytes(1001))), "a message of 1001 bytes"),
        (GREETING + frame(frames.SETTINGS, payload=b"odd"), "what came breaks HTTP/2: SETTINGS of a wrong size"),
        (ANSWER, "what came breaks HTTP/2: settings come first"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "what came breaks HTTP/2: a frame of 4740180 bytes"),
        (GREETING + frame(frames.WINDOW_UPDATE, stream=1, payload=b"\x7f\xff\xff\xff"), "a window is too large"),
    ],
)
async def test_the_call_ends_with_the_reason(answer: bytes, why: str) -> None:
    peer = Peer()
    await peer.answers(answer)
    assert why in peer.why
    assert peer.aborted
    await peer.answers(GREETING + frames.data_frame(1, packed(b"late")))
    assert not peer.messages


async def test_what_the_reader_of_messages_raises_ends_the_call() -> None:
    peer = Peer(fail=ValueError("no event"))
    await peer.answers(GREETING + frames.data_frame(1, packed(b"a", b"b")))
    with pytest.raises(ValueError, match="no event"):
        peer.call.ended.result()
    assert peer.aborted


async def test_a_closed_call_sends_and_hears_nothing_and_can_be_closed_again() -> None:
    peer = Peer()
    await peer.answers(GREETING)
    peer.call.close()
    peer.call.close()
    peer.call.send(b"late")
    await peer.answers(frames.data_frame(1, packed(b"late")))
    peer.call.connection_lost(None)
    assert (peer.why, bytes(peer.came), peer.messages) == ("it was closed", b"", [])


async def test_a_connection_that_is_lost_says_why() -> None:
    for error, why in ((None, "it was cut"), (ConnectionResetError("reset by peer"), "reset by peer")):
        peer = Peer()
        peer.call.connection_lost(error)
        assert peer.why == why
