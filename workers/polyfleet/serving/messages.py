"""What the worker process and its engine process say to each other: plain data, encoded with msgpack.

    worker → engine:  Load once, then Add, AddAdapter, DropAdapter; Cancel on a socket of its own, so that it overtakes
    engine → worker:  Loading…, then Loaded or Failed; then one StepNews per step, and AdapterNews for each AddAdapter;
                      Failed when the engine breaks down

Each message is a frame: its length in 4 bytes, big-endian, and that many bytes. No pickle.
"""

from collections.abc import Iterator

import msgspec

from polyfleet.engine.canary.canary import CanaryVerdict
from polyfleet.engine.facts import EngineFacts, EngineStatus, LoadedAdapter
from polyfleet.transfer.settings import TransferDoor, TransferSettings
from polyfleet.wire.answers import SequenceUpdate
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import SequenceRequest

HEADER_BYTES = 4
MAX_FRAME_BYTES = 1 << 30  # far over any tokenizer document; more means that the stream is out of step


class Load(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Load this model. The first command, sent once: an engine process lives as long as its model.

    `canary_interval` is in seconds; 0: the canary runs only until it was answered rightly once.
    """

    path: str
    options: EngineOptions
    canary_interval: float = 0.0
    adapters: list[str] = []  # folders that it must be able to load, in the order of Loaded's
    transfer: TransferSettings | None = None  # where it gives prefixes to other workers; None: nowhere


class Add(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Queue a sequence."""

    request: SequenceRequest


class Cancel(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """End a sequence; no update follows. Unknown ids are ignored: it may just have ended.

    `after` counts the Adds sent before it, so that the engine knows whether the sequence's own may still be on its way.
    """

    sequence_id: str
    after: int


class AddAdapter(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Load the adapter in this folder; AdapterNews of the same number answers."""

    number: int
    path: str


class DropAdapter(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Let no new sequence have this adapter."""

    fingerprint: str


class AdapterNews(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What became of an AddAdapter: the adapter, or why it can't be had in one sentence."""

    number: int
    adapter: LoadedAdapter | None
    reason: str = ""


class Loading(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """How far loading is: `progress` from 0 to 1, `phase` for people."""

    progress: float
    phase: str


class Loaded(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The model is loaded and has answered the canary, rightly or not (None: it has none).

    `tokenizer` is the assets' document, with its sha256; both empty for a model without.
    """

    facts: EngineFacts
    tokenizer_hash: str
    tokenizer: bytes
    status: EngineStatus
    canary: CanaryVerdict | None = None
    adapters: list[LoadedAdapter] = []
    transfer: TransferDoor | None = None


class Failed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Loading failed, or the engine can't go on; the process ends. `reason` is one sentence."""

    reason: str


class Refusal(msgspec.Struct, frozen=True, array_like=True):
    """A sequence that the engine did not take: a field is out of range."""

    sequence_id: str
    reason: str


class StepNews(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Everything that happened since the last one: a step, refusals, cancels, an answer to the canary.

    `status` counts the first `num_adds` Adds; None: the last one is recent enough.
    """

    updates: list[SequenceUpdate]
    refusals: list[Refusal]
    status: EngineStatus | None
    canary: CanaryVerdict | None = None
    num_adds: int = 0


Command = Load | Add | Cancel | AddAdapter | DropAdapter
Event = Loading | Loaded | Failed | StepNews | AdapterNews

_encoder = msgspec.msgpack.Encoder()
_commands: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_events: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)


def frame(message: Command | Event) -> bytes:
    """A message as it travels."""
    payload = _encoder.encode(message)
    return len(payload).to_bytes(HEADER_BYTES, "big") + payload


def frame_length(header: bytes | bytearray) -> int:
    """The payload's length. Raises ValueError when no message is that long."""
    length = int.from_bytes(header, "big")
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {length} bytes: the stream is out of step")
    return length


def decode_event(payload: bytes) -> Event:
    """What the engine said. Raises msgspec.ValidationError for anything else."""
    return _events.decode(payload)


def take_commands(buffer: bytearray) -> Iterator[Command]:
    """Remove whole frames from the front of `buffer` and decode them."""
    start = 0
    try:
        while len(buffer) - start >= HEADER_BYTES:
            begin = start + HEADER_BYTES
            end = begin + frame_length(buffer[start:begin])
            if len(buffer) < end:
                break
            start = end
            yield _commands.decode(memoryview(buffer)[begin:end])
    finally:
        del buffer[:start]
