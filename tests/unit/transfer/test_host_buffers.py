"""Fetching into memory that the engine makes: what its device reads without a copy, and nobody else writes."""

import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from tests.support import transfers
from tests.support.transfers import GRAIN, LAYOUT, WAIT_SECONDS, caches_of, collect, fetched, played, ticket, wanted_of
from tests.unit.transfer.test_room import WAYS, by, whole

from polyfleet.kernels.int8_rows import rows_of
from polyfleet.kvcache.travelling import Wanted, chunks_on_way
from polyfleet.transfer.memory import copied
from polyfleet.transfer.room import TransferRoom
from polyfleet.transfer.settings import TransferSettings


@pytest.fixture
def room() -> Iterator[TransferRoom]:
    """The fetching side's."""
    mine = TransferRoom(TransferSettings("127.0.0.1:0"))
    yield mine
    mine.close()


class Buffers:
    """Those that were made, which hold what no finite number is until something comes."""

    def __init__(self) -> None:
        self.made: list[np.ndarray] = []

    def __call__(self, size: int) -> memoryview:
        self.made.append(np.full(size, 0xFF, np.uint8))
        return self.made[-1].data

    def wanted(self, tokens: int) -> Wanted:
        """So many tokens, in these."""
        return wanted_of(tokens)._replace(host_buffers=self)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("step", [GRAIN, 5 * GRAIN])
def test_each_chunk_lies_in_a_buffer_of_its_own(way: str, step: int, room: TransferRoom) -> None:
    buffers, many = Buffers(), 20 * GRAIN
    with played(many, step=step) as (_, _, offer):
        fetch = room.fetch(by(way, ticket(offer)), buffers.wanted(many), WAIT_SECONDS)
        assert fetch is not None
        chunks = []
        while not fetch.over or fetch.waiting:
            if (found := fetch.take()) is not None:
                chunks.append(found[0])  # and kept as it is, though it is released: a device may still read it
                fetch.release(found[1])
        room.done(fetch)
    owners = [[np.shares_memory(each, made) for made in buffers.made] for chunk in chunks for each in chunk.caches]
    assert all(sum(row) == 1 for row in owners)
    assert len({row.index(True) for row in owners}) == len(chunks) == many // step
    for got, given in zip(whole(chunks), caches_of(0, many), strict=True):
        assert np.array_equal(got, given)
    assert fetch.reason == ""


@pytest.mark.parametrize("way", WAYS)
def test_no_more_is_received_ahead_than_before(way: str, room: TransferRoom) -> None:
    buffers, most = Buffers(), chunks_on_way(LAYOUT, GRAIN)
    with played(40 * GRAIN) as (_, _, offer):
        fetch = room.fetch(by(way, ticket(offer)), buffers.wanted(40 * GRAIN), WAIT_SECONDS)
        assert fetch is not None
        while fetch.waiting < most:
            threading.Event().wait(0.01)
        threading.Event().wait(0.05)
        assert (fetch.waiting, len(buffers.made)) == (most, most)
        assert len(collect(room, fetch)) == 40
    assert fetch.reason == ""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_broken_numbers_are_refused_before_any_sequence_reads_them(
    way: str, dtype: str, room: TransferRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = caches_of(0, GRAIN), caches_of(0, GRAIN)
    if dtype == "int8":
        good, bad = (tuple(rows_of(each.astype(np.float32)) for each in caches) for caches in (good, bad))
        bad[1][1, -1, -1, -2:] = np.array([0x7F80], np.uint16).view(np.int8)  # its last scale: infinity
    else:
        bad[1][1, -1, -1, -1] = np.inf
    monkeypatch.setattr(transfers, "caches_of", lambda first, tokens: bad if first else good)
    layout = replace(LAYOUT, dtype=dtype)
    with played(2 * GRAIN, layout=layout) as (_, _, offer):
        wanted = Buffers().wanted(2 * GRAIN)._replace(layout=layout)
        chunks, reason = fetched(room, by(way, ticket(offer)), wanted)
    assert (len(chunks), reason) == (1, "damaged")
    assert all(np.array_equal(got, given) for got, given in zip(chunks[0].caches, good, strict=True))


@pytest.mark.parametrize("way", WAYS)
def test_numbers_of_another_kind_are_rounded_as_ever(way: str, room: TransferRoom) -> None:
    wanted = Buffers().wanted(GRAIN)._replace(layout=replace(LAYOUT, dtype="float32"))
    with played(GRAIN) as (_, _, offer):
        chunks, reason = fetched(room, by(way, ticket(offer)), wanted)
    assert reason == ""
    assert np.array_equal(chunks[0].caches[1], caches_of(0, GRAIN)[1].astype(np.float32))


@pytest.mark.parametrize(("way", "expected"), list(zip(WAYS, [(1, ""), (0, "damaged")], strict=False)))
def test_a_chunk_that_no_buffer_holds_lies_elsewhere_or_is_damage(
    way: str, expected: tuple[int, str], room: TransferRoom
) -> None:
    """Over TCP it is received into what it needs; in shared memory nobody who keeps the rules has one."""
    wanted = wanted_of(GRAIN)._replace(host_buffers=lambda size: memoryview(bytearray(8)))
    with played(GRAIN) as (_, _, offer):
        chunks, reason = fetched(room, by(way, ticket(offer)), wanted)
    assert (len(chunks), reason) == expected


@pytest.mark.parametrize("size", [2, 4, 0])
def test_the_copy_is_what_is_looked_at(size: int) -> None:
    numbers = np.arange(1 << 10, dtype="<u2")
    into = bytearray(numbers.nbytes)
    found = copied(numbers.data.cast("B"), memoryview(into), size)
    assert bytes(into) == numbers.tobytes()
    assert found == {2: 1023, 4: 1023 << 16 | 1022, 0: 0}[size]
