"""HPACK: RFC 7541's own examples, and blocks that nobody may send."""

import pytest
from hpack import Decoder
from hpack.exceptions import HPACKError
from hypothesis import given, settings
from hypothesis import strategies as st

from polyfleet.gateway.grpc.http2.frames import ConnectionProblem, Problem, header_block
from polyfleet.gateway.grpc.http2.hpack import HeaderDecoder

FIRST = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"www.example.com")]
SECOND = [*FIRST, (b"cache-control", b"no-cache")]
THIRD = [
    *((b":method", b"GET"), (b":scheme", b"https"), (b":path", b"/index.html"), (b":authority", b"www.example.com")),
    (b"custom-key", b"custom-value"),
]
PLAIN = (  # C.3
    "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
    "8286 84be 5808 6e6f 2d63 6163 6865",
    "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
)
HUFFMAN = (  # C.4
    "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
    "8286 84be 5886 a8eb 1064 9cbf",
    "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
)
LITERALS = {  # C.2
    "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572": (b"custom-key", b"custom-header"),
    "040c 2f73 616d 706c 652f 7061 7468": (b":path", b"/sample/path"),
    "1008 7061 7373 776f 7264 0673 6563 7265 74": (b"password", b"secret"),
}


@pytest.mark.parametrize("blocks", [PLAIN, HUFFMAN])
def test_requests_of_the_rfc(blocks: tuple[str, ...]) -> None:
    decoder = HeaderDecoder(4096)
    assert [decoder.decode(bytes.fromhex(each)) for each in blocks] == [tuple(FIRST), tuple(SECOND), tuple(THIRD)]


def test_literals_of_the_rfc() -> None:
    for block, header in LITERALS.items():
        assert HeaderDecoder(4096).decode(bytes.fromhex(block)) == (header,)


def test_old_headers_make_room() -> None:
    decoder, new = HeaderDecoder(1 << 20), b"\x40\x01a"
    for number in range(200):
        decoder.decode(new + bytes((100,)) + bytes((number,)) * 100)
    assert decoder.decode(b"\xbe") == ((b"a", bytes((199,)) * 100),)  # 62, the newest
    known = 4096 // (1 + 100 + 32)
    assert decoder.decode(bytes((0x80 | (61 + known),)))[0][1][0] == 200 - known
    with pytest.raises(ConnectionProblem, match="Invalid table index"):
        decoder.decode(bytes((0x80 | (62 + known),)))
    decoder.decode(b"\x20")  # a table of no size
    with pytest.raises(ConnectionProblem, match="Invalid table index"):
        decoder.decode(b"\xbe")


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",  # header 0
        b"\xbe",  # one that was never sent
        b"\xff\xff\xff\xff\xff\xff\xff\xff",  # a number without end
        b"\x3f\xe2\x1f",  # a table of 4,097 bytes
        b"\x82\x20",  # a table's size behind a header
        b"\x00\x05ab",  # a name that ends early
        b"\x00\x01a\x7f\xff\xff\xff\x0f",  # a value of 268 MB
        b"\x00\x81\xfe\x00",  # a code that is not filled up with ones
        b"\x00\x84\xff\xff\xff\xff\x00",  # the code that no text holds
        b"\x00",
    ],
)
def test_blocks_that_cannot_be(block: bytes) -> None:
    with pytest.raises(ConnectionProblem) as caught:
        HeaderDecoder(4096).decode(block)
    assert caught.value.code is Problem.COMPRESSION_ERROR


def test_few_bytes_that_stand_for_many_are_no_way_around_the_bound() -> None:
    decoder = HeaderDecoder(16_384)
    decoder.decode(b"\x40\x01a\x7f\xa1\x1e" + bytes(4000))
    with pytest.raises(ConnectionProblem) as caught:
        decoder.decode(b"\xbe" * 1000)
    assert caught.value.code is Problem.ENHANCE_YOUR_CALM


@settings(deadline=None)
@given(st.lists(st.tuples(st.binary(min_size=1, max_size=300), st.binary(max_size=20_000)), max_size=5))
def test_a_servers_own_headers_can_be_read(headers: list[tuple[bytes, bytes]]) -> None:
    assert HeaderDecoder(1 << 20).decode(header_block(tuple(headers))) == tuple(headers)


NAMES = st.sampled_from([b"a", b"authorization", b"x" * 4000])


def literal(first: int, name: bytes, value: bytes) -> bytes:
    """One of a new name, whose lengths need no more than two bytes."""
    return bytes((first,)) + b"".join(
        (bytes((len(text),)) if len(text) < 127 else b"\x7f" + lengthened(len(text) - 127)) + text
        for text in (name, value)
    )


def lengthened(number: int) -> bytes:
    """The rest of a number, RFC 7541, 5.1."""
    return bytes((number,)) if number < 128 else bytes((number % 128 + 128,)) + lengthened(number // 128)


STEPS = st.one_of(
    st.builds(literal, st.sampled_from([0x00, 0x10, 0x40]), NAMES, st.binary(max_size=3)),
    st.sampled_from([b"\x82", b"\xbe", b"\xbf", b"\xc0"]),  # of the static table, and the newest three
    st.sampled_from([b"\x20\x3f\xe1\x1f", b"\x3f\x45", b"\x3f\xe1\x1f"]),  # the table's size: 0, 100 and 4096 bytes
)


@settings(deadline=None, max_examples=300)
@given(st.lists(st.lists(STEPS, min_size=1, max_size=3).map(b"".join), min_size=1, max_size=4), st.data())
def test_a_block_that_came_before_is_read_by_the_table_as_it_is_now(blocks: list[bytes], data: st.DataObject) -> None:
    ours, plain = HeaderDecoder(1 << 20), Decoder()
    for _ in range(30):
        block = data.draw(st.sampled_from(blocks))
        try:
            expected = tuple(plain.decode(block, raw=True))
        except HPACKError:
            with pytest.raises(ConnectionProblem):
                ours.decode(block)
            return
        assert ours.decode(block) == expected


@settings(deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=5))
def test_no_block_breaks_more_than_its_connection(blocks: list[bytes]) -> None:
    decoder = HeaderDecoder(4096)
    try:
        for block in blocks:
            decoder.decode(block)
    except ConnectionProblem:
        pass
