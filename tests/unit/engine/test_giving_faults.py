"""What a peer that computes a prompt may send wrongly, or not at all: each is told by its reason, and computed here."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from tests.support.giver import Giver
from tests.support.tiny_models import TinyShape, poisoned_model
from tests.unit.engine.test_exchange import POISON, engine, run, tokens_of
from tests.unit.engine.test_giving import TENANT, answer, failures, here, source
from tests.unit.engine.test_travel import LONG

from polyfleet.kvcache.travelling import Chunk
from polyfleet.loading.model import LoadedModel
from polyfleet.transfer import fetching, frames
from polyfleet.transfer.memory import available
from polyfleet.transfer.room import TransferRoom
from polyfleet.transfer.serving import Delivery
from polyfleet.transfer.settings import TransferSettings

Send = Callable[[Delivery, Chunk], None]
send: Send = Delivery._send


def frame_of(chunk: Chunk) -> bytearray:
    """All that travels of a chunk over TCP."""
    parts = [each.tobytes() for each in chunk.caches]
    head, body = frames.head_and_body(frames.Blocks(chunk.first, chunk.tokens), sum(map(len, parts)))
    return bytearray(b"".join((head, body, *parts, frames.checksum_of(body, parts))))


def damaged(delivery: Delivery, chunk: Chunk) -> None:
    data = frame_of(chunk)
    data[-frames.CHECKSUM_BYTES - 1] ^= 1
    delivery._channel._socket.sendall(data)


def truncated(delivery: Delivery, chunk: Chunk) -> None:
    delivery._channel._socket.sendall(frame_of(chunk)[:-1])
    raise EOFError


def replayed(delivery: Delivery, chunk: Chunk) -> None:
    send(delivery, chunk)
    send(delivery, chunk)


def elsewhere(delivery: Delivery, chunk: Chunk) -> None:
    send(delivery, chunk._replace(first=chunk.first + 16))


def of_other_shape(delivery: Delivery, chunk: Chunk) -> None:
    send(delivery, chunk._replace(caches=tuple(each[:, :, :, :-1] for each in chunk.caches)))


def not_finite(delivery: Delivery, chunk: Chunk) -> None:
    send(delivery, chunk._replace(caches=tuple(np.full_like(each, np.inf) for each in chunk.caches)))


def silent(delivery: Delivery, chunk: Chunk) -> None:
    while not delivery._channel.closed_by_peer():
        threading.Event().wait(0.02)
    raise EOFError


WIRE = [(damaged, "damaged"), (truncated, "lost"), (of_other_shape, "damaged")]
BOTH = [(replayed, "damaged"), (elsewhere, "damaged"), (not_finite, "damaged"), (silent, "stalled")]
CASES = [("tcp", *each) for each in WIRE + BOTH] + [("memory", *each) for each in BOTH]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return poisoned_model(tmp_path_factory.mktemp("faults"), TinyShape(), POISON)


@pytest.fixture
def peer(model: LoadedModel) -> Iterator[Giver]:
    """One that holds nothing."""
    there = Giver(engine(model))
    yield there
    there.close()


@pytest.fixture
def room() -> Iterator[TransferRoom]:
    mine = TransferRoom(TransferSettings("127.0.0.1:0"))
    yield mine
    mine.close()


@pytest.mark.parametrize(("way", "fault", "reason"), CASES, ids=[f"{way} {fault.__name__}" for way, fault, _ in CASES])
def test_it_is_told_by_its_reason_and_computed_here(
    way: str,
    fault: Send,
    reason: str,
    model: LoadedModel,
    peer: Giver,
    room: TransferRoom,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if way == "memory" and not available():
        pytest.skip("there is no such memory here")
    monkeypatch.setattr(Delivery, "_send", fault)
    monkeypatch.setattr(fetching, "STALL_SECONDS", 2.0)
    mine, ticket = here(model, room), source(peer)
    expected = tokens_of(run(engine(model), LONG, salt=TENANT))
    assert answer(mine, ticket if way == "memory" else replace(ticket, local=""))[0] == expected
    assert failures(mine) == {reason: 1}
    assert mine.status().prefills_apart == 0
    while peer.engine.status().running_sequences or room.num_fetches:
        threading.Event().wait(0.01)
