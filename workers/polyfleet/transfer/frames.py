"""Frames: what two workers say to each other on a transfer channel, as bytes. Pure.

A frame is a header, a message (msgpack), perhaps a payload, which lies behind it or in shared memory, and a checksum
of message and payload. docs/kv-transfer.md has the format.
"""

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

import msgspec
import numpy as np

from polyfleet.graph.kernel_graph import PerToken
from polyfleet.kvcache.checksum import Checksum
from polyfleet.kvcache.portable import BLOCK_TOKENS, DTYPES, Array, Buffer, Joined, KvLayout

HEADER_BYTES = 16
CHECKSUM_BYTES = 16
MAX_MESSAGE_BYTES = 1 << 16
MAX_PAYLOAD_BYTES = 1 << 30
MAX_TOKENS = 1 << 20  # of a prompt
_HEADER = Struct("<4sIQ")  # magic, bytes of the message, bytes of the payload
_MAGIC = b"PFT2"


class BadFrame(ValueError):
    """What came is no frame, or was damaged on its way. The message is one sentence."""


class Hello(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The fetching side's first word: its ticket's number, the prefix's root, and a challenge."""

    ticket: bytes
    root: bytes
    challenge: bytes


class Welcome(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The serving side has the ticket's secret; now it wants to know whether the other one has it."""

    challenge: bytes
    proof: bytes


class Ask(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Which beginning is wanted: its payload are the token ids, as uint32.

    `first`: tokens that are not wanted, since they are there; `grain`: tokens come in multiples of so many.
    """

    proof: bytes
    model: str
    adapter: str
    salt: bytes
    first: int
    grain: int


class Layout(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """How the numbers are stored that follow. `slots`, each of `slot_bytes`, are shared memory whose descriptor comes
    with the frame; without any, payloads come behind their frames."""

    model: str
    dtype: str
    caches: list[tuple[int, int, bool]]  # of each KV heads, width, whether it is latent
    slots: int = 0
    slot_bytes: int = 0


class Blocks(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Keys and values of `tokens` positions from `first` on, cache after cache, each [2, tokens, heads, width]."""

    first: int
    tokens: int
    slot: int = -1  # of shared memory


class Wait(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The serving side computes what was asked for: more follows."""


class Release(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The fetching side has read a slot of shared memory."""

    slot: int


class End(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Nothing follows; `reason` says why that is not all that was asked for, else it is empty."""

    reason: str = ""


Message = Hello | Welcome | Ask | Layout | Blocks | Wait | Release | End
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


class Head(NamedTuple):
    """What a header says."""

    message_bytes: int
    payload_bytes: int


def head_and_body(message: Message, payload_bytes: int) -> tuple[bytes, bytes]:
    """Header and message of a frame; the payload and the checksum of message and payload follow."""
    body = _encoder.encode(message)
    return _HEADER.pack(_MAGIC, len(body), payload_bytes), body


def checksum_of(body: Buffer, payload: Sequence[Buffer] = ()) -> bytes:
    """Of a message and its payload's parts."""
    checksum = Checksum(body)
    for part in payload:
        checksum.update(part)
    return checksum.digest()


def head_of(header: Buffer) -> Head:
    """Of HEADER_BYTES. Raises BadFrame for what no frame begins with."""
    magic, message, payload = _HEADER.unpack(header)
    if magic != _MAGIC:
        raise BadFrame("what came is no transfer frame")
    if message > MAX_MESSAGE_BYTES or payload > MAX_PAYLOAD_BYTES:
        raise BadFrame(f"a transfer frame can't have {message} and {payload} bytes")
    return Head(message, payload)


def message_of(body: Buffer, checksum: Checksum, digest: Buffer) -> Message:
    """The message of a whole frame, of which `checksum` has seen all. Raises BadFrame where either is wrong."""
    if checksum.digest() != digest:
        raise BadFrame("a transfer frame's checksum is wrong: it was damaged on its way")
    try:
        return _decoder.decode(body)
    except msgspec.DecodeError:
        raise BadFrame("a transfer frame has no message that is known") from None


def layout_message(layout: KvLayout, slots: int = 0, slot_bytes: int = 0) -> Layout:
    """As it travels."""
    caches = [(each.heads, each.width, each.latent) for each in layout.caches]
    return Layout(layout.model, layout.dtype, caches, slots, slot_bytes)


def layout_of(message: Layout) -> KvLayout:
    """As it came. Raises BadFrame for one that can't be."""
    if message.dtype not in DTYPES or any(heads < 0 or width < 0 for heads, width, _ in message.caches):
        raise BadFrame("the sender's caches are of a kind that is not known")
    return KvLayout(message.model, tuple(PerToken(*each) for each in message.caches), message.dtype)


def chunk_arrays(layout: KvLayout, num_tokens: int, payload: memoryview) -> Joined:
    """A payload's caches, without a copy. Raises BadFrame unless they fill it exactly."""
    shapes, dtype = layout.shapes(num_tokens), DTYPES[layout.dtype]
    if num_tokens < 0 or num_tokens % BLOCK_TOKENS or num_tokens * layout.token_bytes != payload.nbytes:
        raise BadFrame(f"{payload.nbytes} bytes can't be the keys and values of {num_tokens} tokens")
    return Joined.of(payload, shapes, dtype)


def payload_parts(arrays: Sequence[Array]) -> list[memoryview]:
    """Caches as bytes, one behind the other: in one piece where they lie so."""
    if isinstance(arrays, Joined):
        return [arrays.memory.cast("B")] if arrays.memory.nbytes else []
    return [np.ascontiguousarray(each).data.cast("B") for each in arrays if each.size]


def write_arrays(arrays: Sequence[Array], into: memoryview) -> memoryview:
    """Copy caches into memory, one behind the other; the part that they fill.

    In one piece where they lie so: each piece more takes Python's lock once more, for which the engine's thread waits.
    """
    size = sum(each.nbytes for each in arrays)
    if isinstance(arrays, Joined):
        np.copyto(np.frombuffer(into[:size], np.uint8), np.frombuffer(arrays.memory, np.uint8))
    elif size:
        np.concatenate([each.reshape(-1) for each in arrays], out=np.frombuffer(into[:size], arrays[0].dtype))
    return into[:size]
