"""What lies between two engines: how much is put out ahead, how many chunks are on their way, which memory is free."""

import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from tests.support.transfers import GRAIN, LAYOUT, WAIT_SECONDS, caches_of, collect, leaving, played, ticket, wanted_of
from tests.unit.transfer.test_room import WAYS, by, whole

from polyfleet.graph.kernel_graph import PerToken
from polyfleet.kvcache.travelling import Chunk, chunks_on_way
from polyfleet.transfer import inquiry
from polyfleet.transfer.inquiry import Inquiry
from polyfleet.transfer.memory import SharedSlots, available
from polyfleet.transfer.room import TransferRoom
from polyfleet.transfer.settings import TransferSettings


@pytest.fixture
def room() -> Iterator[TransferRoom]:
    """The fetching side's."""
    mine = TransferRoom(TransferSettings("127.0.0.1:0"))
    yield mine
    mine.close()


def test_engines_put_out_so_many_bytes_for_all_peers_together(monkeypatch: pytest.MonkeyPatch) -> None:
    chunk = caches_of(0, GRAIN)
    monkeypatch.setattr(inquiry, "AHEAD_BYTES", 8 * sum(each.nbytes for each in chunk))
    served: set[Inquiry] = set()
    one, other = (Inquiry("model", (), b"", 0, GRAIN, served=served) for _ in range(2))

    def put_out(target: Inquiry) -> int:
        before = target.first
        while target.room:
            target.give(leaving(target.first, chunk))
        return (target.first - before) // GRAIN

    served.add(one)
    assert put_out(one) == 8
    served.add(other)
    assert (put_out(other), put_out(one)) == (4, 0)
    taken = [one.take(0) for _ in range(5)]
    assert [each.first for each in taken if isinstance(each, Chunk)] == [n * GRAIN for n in range(5)]
    assert put_out(one) == 1  # three are left, of its half
    served.discard(other)
    assert put_out(one) == 4


@pytest.mark.parametrize("way", WAYS)
def test_many_chunks_lie_between_two_engines_and_none_is_written_before_it_is_read(
    way: str, room: TransferRoom
) -> None:
    layout = replace(LAYOUT, caches=tuple(PerToken(1, 1 << 17) for _ in range(2)))  # 16 MiB a grain
    ways = chunks_on_way(layout, GRAIN)
    with played(40 * GRAIN) as (_, _, offer):
        fetch = room.fetch(by(way, ticket(offer)), wanted_of(40 * GRAIN), WAIT_SECONDS)
        assert fetch is not None
        while fetch.waiting < min(ways, chunks_on_way(LAYOUT, GRAIN)):
            threading.Event().wait(0.01)
        for got, given in zip(whole(collect(room, fetch)), caches_of(0, 40 * GRAIN), strict=True):
            assert np.array_equal(got, given)
    assert (ways, chunks_on_way(LAYOUT, GRAIN), fetch.reason) == (4, 8, "")


def test_a_slot_that_is_written_again_unread_is_damage(room: TransferRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    if not available():
        pytest.skip("there is no such memory here")
    monkeypatch.setattr(SharedSlots, "take", lambda self: 0)
    with played(4 * GRAIN) as (_, _, offer):
        fetch = room.fetch(ticket(offer), wanted_of(4 * GRAIN), WAIT_SECONDS)
        assert fetch is not None
        while not fetch.over:
            threading.Event().wait(0.01)
        assert (len(collect(room, fetch)), fetch.reason) == (1, "damaged")
