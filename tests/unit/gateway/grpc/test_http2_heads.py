"""What stands before and behind a call's messages."""

import zlib

import pytest

from polyfleet.gateway.grpc.http2.frames import StreamProblem
from polyfleet.gateway.grpc.http2.heads import HeadReader, expanded, read_head, trailers

PSEUDO = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a.B/C"), (b":authority", b"x")]
TYPE = (b"content-type", b"application/grpc+proto")


def test_a_call_with_metadata() -> None:
    more = [(b"te", b"trailers"), (b"x-a", b"1"), (b"x-a", b"2"), (b"k-bin", b"AAE,Ag=="), (b"grpc-timeout", b"250m")]
    head = read_head([*PSEUDO, TYPE, *more])
    assert (head.path, head.timeout, head.problem) == ("/a.B/C", 0.25, "")
    assert head.metadata == (("x-a", "1"), ("x-a", "2"), ("k-bin", b"\x00\x01"), ("k-bin", b"\x02"))
    assert head.size == sum(len(name) + len(value) + 32 for name, value in [*PSEUDO, TYPE, *more])


@pytest.mark.parametrize(
    ("told", "seconds"), [(b"2H", 7200), (b"3M", 180), (b"99999999S", 99999999), (b"5u", 5e-6), (b"0n", 0)]
)
def test_timeouts(told: bytes, seconds: float) -> None:
    assert read_head([*PSEUDO, TYPE, (b"grpc-timeout", told)]).timeout == pytest.approx(seconds)


def test_what_is_no_call_is_answered_as_http() -> None:
    assert read_head([(b":method", b"GET"), *PSEUDO[1:], TYPE]).problem == "405"
    assert read_head(PSEUDO).problem == "415"


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        (b"application/grpc", ""),
        (b"Application/gRPC; charset=utf-8", ""),
        (b"application/grpc+proto", ""),
        (b"application/grpc+json", "415"),
        (b"application/grpc-web", "415"),
        (b"application/grpc-web+proto", "415"),
        (b"application/grpcx", "415"),
        (b"text/html", "415"),
    ],
)
def test_types_of_messages(told: bytes, problem: str) -> None:
    assert read_head([*PSEUDO, (b"content-type", told)]).problem == problem


@pytest.mark.parametrize(
    ("told", "size", "end", "fits"),
    [("", 7, True, True), ("5", 5, True, True), ("5", 4, False, True), ("5", 4, True, False), ("5", 6, False, False)],
)
def test_as_many_bytes_come_as_were_told(told: str, size: int, *, end: bool, fits: bool) -> None:
    head = read_head([*PSEUDO, TYPE, *([(b"content-length", told.encode())] if told else [])])
    assert head.fits(size, end=end) is fits


@pytest.mark.parametrize(
    "headers",
    [
        [*PSEUDO[1:], TYPE],
        [*PSEUDO, PSEUDO[0], TYPE],
        [TYPE, *PSEUDO],
        [*PSEUDO, TYPE, (b"X-Upper", b"1")],
        [*PSEUDO, TYPE, (b"a b", b"1")],
        [*PSEUDO, TYPE, (b"connection", b"close")],
        [*PSEUDO, TYPE, (b"te", b"trailers, deflate")],
        [*PSEUDO, TYPE, (b"content-length", b"-1")],
        [*PSEUDO, TYPE, (b"content-length", b"")],
        [*PSEUDO[:3], TYPE, PSEUDO[3]],
        [*PSEUDO[:2], (b":path", b""), TYPE],
        [*PSEUDO, (b":protocol", b"websocket"), TYPE],
        [*PSEUDO, TYPE, (b"x-a", b"1\r\nx-b: 2")],
        [*PSEUDO, TYPE, (b"x-a", b"1\0")],
        [*PSEUDO[:2], (b":path", b"/a\nb"), TYPE],
    ],
)
def test_headers_that_cannot_be(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(StreamProblem):
        read_head(headers)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        (b"grpc-timeout", b"123456789S", "timeout"),
        (b"grpc-timeout", b"5", "timeout"),
        (b"grpc-timeout", b"", "timeout"),
        (b"k-bin", b"\xff", "base64"),
        (b"k-bin", b"AAE,A", "base64"),
    ],
)
def test_what_grpc_cannot_read_is_told(name: bytes, value: bytes, told: str) -> None:
    head = read_head([*PSEUDO, TYPE, (name, value)])
    assert told in head.fault
    assert (head.metadata, head.timeout, head.problem) == ((), None, "")


def test_a_status_in_any_words() -> None:
    told = trailers(3, "100 % wrong:\nä", (("k-bin", b"\x00\x01"), ("x", "1")))
    assert told == (
        (b"grpc-status", b"3"),
        (b"grpc-message", b"100 %25 wrong:%0A%C3%A4"),
        (b"k-bin", b"AAE"),
        (b"x", b"1"),
    )


def test_compressed_messages() -> None:
    message = b"fox " * 100
    gzip = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    assert expanded(gzip.compress(message) + gzip.flush(), b"gzip", 400) == message
    assert expanded(zlib.compress(message), b"deflate", 400) == message
    for data, encoding, most in (
        (zlib.compress(message), b"deflate", 399),
        (zlib.compress(bytes(10**8)), b"deflate", 4096),
        (zlib.compress(message)[:-6], b"deflate", 4096),
        (message, b"gzip", 4096),
        (message, b"snappy", 4096),
    ):
        with pytest.raises(ValueError, match=r"[Mm]essage"):
            expanded(data, encoding, most)


def test_heads_that_came_lately_are_read_once() -> None:
    reader, one = HeadReader(), (*PSEUDO, TYPE, (b"grpc-timeout", b"1S"))
    assert reader.read(one) == read_head(one)
    assert reader.read(tuple(one)) is reader.read((*one,))
    for number in range(100):  # of more than it keeps, each is read for what it is
        other = (*one, (b"x", b"%d" % number))
        assert reader.read(other).metadata == (("x", str(number)),)
    large = (*one, (b"x", b"1" * 4000))
    assert reader.read(large) == read_head(large)
    assert reader.read(large) is not reader.read(large)
    with pytest.raises(StreamProblem):
        reader.read(one[1:])
