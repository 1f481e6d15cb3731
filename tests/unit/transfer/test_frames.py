"""Frames: what was sent comes back, and nothing else is taken for a frame."""

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyfleet.graph.kernel_graph import PerToken
from polyfleet.kvcache.checksum import Checksum
from polyfleet.kvcache.portable import Joined, KvLayout
from polyfleet.transfer import frames
from polyfleet.transfer.frames import CHECKSUM_BYTES, HEADER_BYTES, BadFrame, Blocks, End, Hello, Message

LAYOUT = KvLayout("model", (PerToken(2, 4), PerToken(1, 6, latent=True)), "float16")
MESSAGES: list[Message] = [
    Hello(b"t" * 16, b"r" * 16, b"c" * 16),
    frames.Welcome(b"c" * 16, b"p" * 32),
    frames.Ask(b"p" * 32, "model", "", b"salt", 32, 16),
    frames.layout_message(LAYOUT, 4, 1 << 20),
    Blocks(32, 16, 3),
    frames.Release(2),
    End("busy"),
]


def frame(message: Message, payload: Sequence[bytes] = ()) -> bytes:
    """As a channel sends it."""
    head, body = frames.head_and_body(message, sum(map(len, payload)))
    return b"".join((head, body, *payload, frames.checksum_of(body, payload)))


def read(data: bytes) -> tuple[Message, bytes]:
    """As a channel reads it."""
    head = frames.head_of(data[:HEADER_BYTES])
    rest, digest = data[HEADER_BYTES:-CHECKSUM_BYTES], data[-CHECKSUM_BYTES:]
    body, payload = rest[: head.message_bytes], rest[head.message_bytes :]
    if len(payload) != head.payload_bytes:
        raise BadFrame("truncated")
    return frames.message_of(body, summed(body, payload), digest), payload


def summed(body: bytes, *payload: bytes) -> Checksum:
    checksum = Checksum(body)
    for part in payload:
        checksum.update(part)
    return checksum


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(MESSAGES), st.binary(max_size=20_000))
def test_come_back(message: Message, payload: bytes) -> None:
    assert read(frame(message, [payload])) == (message, payload)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=20_000), st.lists(st.integers(0, 20_000), max_size=5))
def test_a_payload_in_parts_has_the_checksum_of_the_whole(payload: bytes, cuts: list[int]) -> None:
    parts = [payload[begin:end] for begin, end in pairwise([0, *sorted(cuts), len(payload) + 20_000])]
    assert summed(b"body", *parts).digest() == summed(b"body", payload).digest()
    looking = Checksum(b"body", 2)
    for part in parts:
        looking.update(part)
    assert looking.digest() == summed(b"body", payload).digest()
    numbers = np.frombuffer(payload, "<u2", len(payload) // 2) & 0x7FFF
    assert looking.largest == numbers.max(initial=0)


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(MESSAGES), st.integers(0, 9000), st.data())
def test_damage_shows_wherever_it_is(message: Message, size: int, data: st.DataObject) -> None:
    payload = bytes(each % 251 for each in range(size))
    whole = bytearray(frame(message, [payload]))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BadFrame):
        read(bytes(whole))


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(MESSAGES), st.data())
def test_a_truncated_frame_is_none(message: Message, data: st.DataObject) -> None:
    whole = frame(message, [b"p" * 5000])
    end = data.draw(st.integers(HEADER_BYTES, len(whole) - 1))
    with pytest.raises(BadFrame):
        read(whole[:end])


@settings(max_examples=60, deadline=None)
@given(st.binary(min_size=HEADER_BYTES, max_size=200))
def test_other_bytes_are_no_frame(data: bytes) -> None:
    with pytest.raises(BadFrame):
        read(data)


def test_rows_that_change_places_are_damage() -> None:
    payload = np.arange(4096, dtype="<u8")
    moved = np.concatenate([payload[2048:], payload[:2048]])
    assert summed(b"", payload.tobytes()).digest() != summed(b"", moved.tobytes()).digest()


def test_sizes_are_bounded_before_anything_is_allocated() -> None:
    for message, payload in ((frames.MAX_MESSAGE_BYTES + 1, 0), (0, frames.MAX_PAYLOAD_BYTES + 1)):
        with pytest.raises(BadFrame, match="can't have"):
            frames.head_of(frames._HEADER.pack(b"PFT2", message, payload))


def test_an_unknown_message_is_refused() -> None:
    body = msgspec.msgpack.encode(["Later", 1])
    header = frames._HEADER.pack(b"PFT2", len(body), 0)
    with pytest.raises(BadFrame, match="no message that is known"):
        read(header + body + summed(body).digest())


def test_arrays_of_a_chunk_are_views_of_its_payload() -> None:
    arrays = (np.arange(2 * 16 * 2 * 4).reshape(2, 16, 2, 4), np.arange(16 * 6).reshape(1, 16, 1, 6))
    halves = tuple(each.astype("<f2") for each in arrays)
    memory = memoryview(bytearray(16 * LAYOUT.token_bytes + 100))
    payload = frames.write_arrays(halves, memory)
    assert payload.nbytes == 16 * LAYOUT.token_bytes
    back = frames.chunk_arrays(LAYOUT, 16, payload)
    assert all(np.array_equal(*pair) for pair in zip(back, halves, strict=True))
    memory[0] ^= 1
    assert back[0][0, 0, 0, 0] != halves[0][0, 0, 0, 0]


@pytest.mark.parametrize(("tokens", "size"), [(16, 700), (8, 352), (-16, 0), (32, 704)])
def test_a_chunk_of_another_size_is_refused(tokens: int, size: int) -> None:
    with pytest.raises(BadFrame, match="can't be"):
        frames.chunk_arrays(LAYOUT, tokens, memoryview(bytes(size)))


def test_a_layout_comes_back() -> None:
    assert frames.layout_of(frames.layout_message(LAYOUT)) == LAYOUT
    with pytest.raises(BadFrame):
        frames.layout_of(frames.Layout("model", "int3", []))
    with pytest.raises(BadFrame):
        frames.layout_of(frames.Layout("model", "float16", [(-1, 4, False)]))


@pytest.mark.parametrize("tokens", [0, 16, 48])
def test_caches_that_lie_together_leave_in_one_piece_and_as_others_do(tokens: int) -> None:
    memory = memoryview(bytearray(np.random.default_rng(tokens).bytes(tokens * LAYOUT.token_bytes)))
    joined = Joined.of(memory, LAYOUT.shapes(tokens), np.dtype("<f2"))
    apart = tuple(each.copy() for each in joined)
    assert len(frames.payload_parts(joined)) == (1 if tokens else 0)
    for caches in (joined, apart):
        assert b"".join(frames.payload_parts(caches)) == bytes(memory)
        room = memoryview(bytearray(memory.nbytes + 8))
        assert frames.write_arrays(caches, room) == memory
