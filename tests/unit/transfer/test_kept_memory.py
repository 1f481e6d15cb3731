"""Shared memory is used again: for the same tenant's next transfer, once the peer has read all, and by nobody else."""

import mmap
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from tests.support.transfers import GRAIN, WAIT_SECONDS, caches_of, fetched, played, ticket, wanted_of
from tests.unit.transfer.test_room import whole

from polyfleet.transfer.memory import MOST_KEPT, KeptSlots, SharedSlots, available
from polyfleet.transfer.room import TransferRoom
from polyfleet.transfer.settings import TransferSettings

pytestmark = pytest.mark.skipif(not available(), reason="there is no such memory here")


@pytest.fixture
def room() -> Iterator[TransferRoom]:
    """The fetching side's."""
    mine = TransferRoom(TransferSettings("127.0.0.1:0"))
    yield mine
    mine.close()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[SharedSlots]:
    """All memory that is made from here on."""
    found, create = list[SharedSlots](), SharedSlots.create

    def noted(count: int, size: int) -> SharedSlots:
        found.append(create(count, size))
        return found[-1]

    monkeypatch.setattr(SharedSlots, "create", noted)
    return found


def test_the_next_transfer_of_a_tenant_uses_the_memory_of_the_last_one(
    room: TransferRoom, made: list[SharedSlots]
) -> None:
    with played(8 * GRAIN) as (there, _, offer):
        for _ in range(3):
            chunks, reason = fetched(room, ticket(offer), wanted_of(8 * GRAIN))
            assert reason == ""
            for got, given in zip(whole(chunks), caches_of(0, 8 * GRAIN), strict=True):
                assert np.array_equal(got, given)
            wait_served(there)
        assert len(made) == 1
        other = b"another tenant"
        assert fetched(room, ticket(offer, other), wanted_of(8 * GRAIN, salt=other))[1] == ""
        assert len(made) == 2


def test_memory_that_the_peer_may_still_read_is_not_used_again(room: TransferRoom, made: list[SharedSlots]) -> None:
    with played(8 * GRAIN) as (there, _, offer):
        fetch = room.fetch(ticket(offer), wanted_of(8 * GRAIN), WAIT_SECONDS)
        assert fetch is not None
        while not fetch.waiting:
            threading.Event().wait(0.01)
        assert fetch.take() is not None
        room.done(fetch)  # without having released it
        wait_served(there)
        fetched(room, ticket(offer), wanted_of(8 * GRAIN))
        assert len(made) == 2


def wait_served(there: TransferRoom) -> None:
    """Until the serving side has ended all transfers."""
    while there._served:
        threading.Event().wait(0.01)


def test_whoever_else_has_the_memory_can_not_write_it() -> None:
    slots = SharedSlots.create(2, 4096)
    assert slots.others_read
    with pytest.raises(PermissionError):
        mmap.mmap(slots.descriptor, 8192, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    reader = mmap.mmap(slots.descriptor, 8192, mmap.MAP_SHARED, mmap.PROT_READ)
    slots.slot(0)[:4] = b"seen"
    assert reader[:4] == b"seen"
    reader.close()
    slots.close()


def test_a_few_are_kept_and_only_of_the_size_that_is_wanted() -> None:
    kept = KeptSlots()
    roots = [bytes([n]) for n in range(MOST_KEPT + 1)]
    first = [kept.take(root, 2, 4096) for root in roots]
    for root, slots in zip(roots, first, strict=True):
        kept.give_back(root, slots)
    assert kept.take(roots[0], 2, 4096) is not first[0], "the oldest has gone"
    assert kept.take(roots[1], 2, 4096) is first[1]
    assert kept.take(roots[2], 2, 8192) is not first[2]
    assert kept.take(roots[1], 2, 4096) is not first[1], "it is in use"
    several = [kept.take(b"one", 2, 4096) for _ in range(3)]
    for slots in several:
        kept.give_back(b"one", slots)
    assert [kept.take(b"one", 2, 4096) for _ in range(3)] == several[::-1], "transfers that were side by side"
    half_read = kept.take(b"another", 2, 4096)
    half_read.take()
    kept.give_back(b"another", half_read)
    assert kept.take(b"another", 2, 4096) is not half_read
