"""FrameReader: whatever comes, in whatever pieces."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from polyfleet.gateway.grpc.http2.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITISED,
    SETTINGS,
    ConnectionProblem,
    frame,
    header_block,
)
from polyfleet.gateway.grpc.http2.hpack import Header
from polyfleet.gateway.grpc.http2.reading import FrameReader

HEADER = ((b":path", b"/a"), (b"x-a", b"1" * 300))
BLOCK = header_block(HEADER)
WHOLE = b"".join(
    (
        PREFACE,
        frame(SETTINGS),
        frame(HEADERS, PADDED | PRIORITISED, 1, b"\x03" + bytes(5) + BLOCK[:7] + bytes(3)),
        frame(CONTINUATION, 0, 1, BLOCK[7:20]),
        frame(CONTINUATION, END_HEADERS, 1, BLOCK[20:]),
        frame(PING, payload=bytes(8)),
        frame(DATA, PADDED, 1, b"\x02fox" + bytes(2)),
        frame(DATA, END_STREAM, 1),
        frame(HEADERS, END_HEADERS | END_STREAM, 3, BLOCK),
    )
)
CAME = [
    ("control", SETTINGS, 0, b""),
    ("headers", 1, HEADER, False),
    ("control", PING, 0, bytes(8)),
    ("data", 1, b"fox", 6, False),
    ("data", 1, b"", 0, True),
    ("headers", 3, HEADER, True),
]


class Notes:
    """What has come."""

    def __init__(self, most: int = 1 << 30) -> None:
        self.came: list[tuple[object, ...]] = []
        self.most = most

    @property
    def sated(self) -> bool:
        return len(self.came) >= self.most

    def begun(self) -> None:
        pass

    def data(self, stream: int, data: bytes, size: int, *, end: bool) -> None:
        self.came.append(("data", stream, data, size, end))

    def headers(self, stream: int, headers: tuple[Header, ...], *, end: bool) -> None:
        self.came.append(("headers", stream, headers, end))

    def control(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        self.came.append(("control", kind, stream, payload))


@settings(deadline=None)
@given(st.lists(st.integers(0, len(WHOLE)), max_size=12))
def test_the_same_comes_of_any_pieces(cuts: list[int]) -> None:
    notes, places = Notes(), [0, *sorted(cuts), len(WHOLE)]
    reader = FrameReader(notes)
    for start, end in pairwise(places):
        reader.feed(WHOLE[start:end])
    assert notes.came == CAME


def test_who_is_sated_gets_the_rest_later() -> None:
    notes = Notes(most=2)
    reader = FrameReader(notes)
    reader.feed(WHOLE)
    assert notes.came == CAME[:2]
    for most in range(3, 7):
        notes.most = most
        reader.feed(b"")
        assert notes.came == CAME[:most]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 255), st.integers(0, 5), st.binary(max_size=60))))
def test_no_frames_break_more_than_their_connection(sent: list[tuple[int, int, int, bytes]]) -> None:
    reader = FrameReader(Notes())
    reader.feed(PREFACE + frame(SETTINGS))
    try:
        for kind, flags, stream, payload in sent:
            reader.feed(frame(kind, flags, stream, payload))
    except ConnectionProblem:
        pass
