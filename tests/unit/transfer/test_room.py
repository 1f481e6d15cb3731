"""TransferRoom: two ends that know each other, over memory and TCP; all that others try is refused."""

import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from tests.support import transfers
from tests.support.transfers import GRAIN, LAYOUT, WAIT_SECONDS, caches_of, collect, fetched, played, ticket, wanted_of

from polyfleet.graph.kernel_graph import PerToken
from polyfleet.kernels.int8_rows import numbers_of, rows_of, to_bfloat16
from polyfleet.kvcache.travelling import Chunk
from polyfleet.transfer import fetching, serving
from polyfleet.transfer.channel import Channel, Stalled
from polyfleet.transfer.frames import Ask, Blocks, End, Hello, Release, Welcome
from polyfleet.transfer.memory import SharedSlots, available
from polyfleet.transfer.room import MOST_TRANSFERS, TransferRoom
from polyfleet.transfer.settings import TransferSettings
from polyfleet.transfer.transports import connect
from polyfleet.wire.hashing import prefix_root
from polyfleet.wire.tickets import PrefixSource, TransferOffer, source_of

WAYS = ["tcp", *(["memory"] if available() else [])]


@pytest.fixture
def room() -> Iterator[TransferRoom]:
    """The fetching side's."""
    mine = TransferRoom(TransferSettings("127.0.0.1:0"))
    yield mine
    mine.close()


def by(way: str, source: PrefixSource) -> PrefixSource:
    """To be fetched that way."""
    return source if way == "memory" else replace(source, local="")


def whole(chunks: list[Chunk]) -> list[np.ndarray]:
    """Chunks joined, which must follow each other."""
    return [np.concatenate([each.caches[layer] for each in chunks], axis=1) for layer in (0, 1)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("first", "step"), [(0, GRAIN), (0, 5 * GRAIN), (3 * GRAIN, 2 * GRAIN)])
def test_what_is_given_arrives(way: str, first: int, step: int, room: TransferRoom) -> None:
    with played(20 * GRAIN, step=step) as (_, engine, offer):
        chunks, reason = fetched(room, by(way, ticket(offer)), wanted_of(20 * GRAIN, first=first))
    assert (reason, chunks[0].first) == ("", first)
    for got, given in zip(whole(chunks), caches_of(first, 20 * GRAIN - first), strict=True):
        assert np.array_equal(got, given)
    assert engine.inquiries[0].token_ids == tuple(range(20 * GRAIN))


@pytest.mark.parametrize("way", WAYS)
def test_a_ticket_opens_one_tenants_prefixes_of_one_adapter(way: str, room: TransferRoom) -> None:
    with played(GRAIN) as (_, engine, offer):
        right = by(way, ticket(offer))
        asks = [
            (right, wanted_of(GRAIN, salt=b"another")),
            (right, wanted_of(GRAIN, adapter="adapter")),
            (right, wanted_of(GRAIN)._replace(layout=replace(LAYOUT, model="another revision"))),
            (replace(right, secret=b"?" * 32), wanted_of(GRAIN)),
            (replace(right, ticket=b"?" * 16), wanted_of(GRAIN)),
        ]
        for source, wanted in asks:
            assert fetched(room, source, wanted) == ([], "refused")
        assert not engine.inquiries
        adapted = by(way, ticket(offer, adapter="adapter"))
        assert fetched(room, adapted, wanted_of(GRAIN, adapter="adapter"))[1] == ""


def test_who_knows_the_tenant_but_not_the_secret_gets_nothing(room: TransferRoom) -> None:
    """An ask that its own side does not stop: the serving side's check alone."""
    with played(GRAIN) as (_, engine, offer):
        source = ticket(offer)
        channel = connect(replace(source, local=""), WAIT_SECONDS)
        channel.allow(WAIT_SECONDS)
        wanted = wanted_of(GRAIN)
        channel.send(Hello(source.ticket, prefix_root("model", b"tenant"), b"c" * 16))
        channel.expect(Welcome)
        channel.send(Ask(b"guessed", "model", "", wanted.salt, 0, GRAIN), [bytes(4 * GRAIN)])
        message, _ = channel.receive()
        assert message == End("the ticket is not for this prefix")
        channel.close()
        assert not engine.inquiries


def test_caches_of_another_shape_are_refused(room: TransferRoom) -> None:
    other = replace(LAYOUT, caches=(PerToken(2, 8), PerToken(2, 8)))
    with played(GRAIN, layout=other) as (_, _, offer):
        assert fetched(room, ticket(offer), wanted_of(GRAIN)) == ([], "refused")


def test_numbers_come_in_the_receivers_own_kind(room: TransferRoom) -> None:
    with played(GRAIN) as (_, _, offer):
        wanted = wanted_of(GRAIN)._replace(layout=replace(LAYOUT, dtype="float32"))
        chunks, reason = fetched(room, ticket(offer), wanted)
    assert reason == ""
    assert chunks[0].caches[0].dtype == np.float32
    assert np.array_equal(chunks[0].caches[1], caches_of(0, GRAIN)[1])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["int8", "float16"])
def test_rows_of_codes_come_as_they_are_unless_a_scale_is_broken(
    way: str, dtype: str, room: TransferRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To an engine that keeps codes, or rounded to what it keeps."""
    given = tuple(rows_of(each.astype(np.float32)) for each in caches_of(0, GRAIN))
    monkeypatch.setattr(transfers, "caches_of", lambda first, tokens: given)
    layout, wanted = replace(LAYOUT, dtype="int8"), wanted_of(GRAIN)._replace(layout=replace(LAYOUT, dtype=dtype))
    with played(GRAIN, layout=layout) as (_, _, offer):
        chunks, reason = fetched(room, by(way, ticket(offer)), wanted)
        assert reason == ""
        for got, rows in zip(chunks[0].caches, given, strict=True):
            assert np.array_equal(got, rows if dtype == "int8" else numbers_of(rows).astype(np.float16))
        for broken in (-1.0, np.nan, np.inf):
            given[1][1, 5, 0, -2:] = to_bfloat16(np.array([broken], np.float32)).view(np.int8)
            assert fetched(room, by(way, ticket(offer)), wanted) == ([], "damaged")


def test_nobody_there(room: TransferRoom) -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        address = f"127.0.0.1:{door.getsockname()[1]}"
    assert fetched(room, ticket(TransferOffer(address, "no-such-name", b"k" * 32)), wanted_of(GRAIN)) == (
        [],
        "unreachable",
    )


def test_a_peer_that_stalls_is_left(room: TransferRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "STALL_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as door:
        source = ticket(TransferOffer(f"127.0.0.1:{door.getsockname()[1]}", "", b"k" * 32))
        assert fetched(room, source, wanted_of(GRAIN)) == ([], "stalled")


def test_stalling_peers_cost_others_nothing(room: TransferRoom) -> None:
    with played(GRAIN) as (_, engine, offer):
        engine.gate.clear()
        waiting = [room.fetch(ticket(offer), wanted_of(GRAIN), WAIT_SECONDS) for _ in range(MOST_TRANSFERS)]
        assert room.fetch(ticket(offer), wanted_of(GRAIN), WAIT_SECONDS) is None  # it computes
        idle = [socket.create_connection(("127.0.0.1", int(offer.address.split(":")[1]))) for _ in range(20)]
        engine.gate.set()
        for each in waiting:
            assert each is not None
            while not each.over:
                each.take()
                threading.Event().wait(0.01)
            room.done(each)
            assert each.reason == ""
        assert fetched(room, ticket(offer), wanted_of(GRAIN))[1] == ""
        for end in idle:
            end.close()


def test_more_than_it_serves_at_a_time_are_told_so(room: TransferRoom) -> None:
    other = TransferRoom(TransferSettings("127.0.0.1:0"))
    with played(GRAIN) as (_, engine, offer):
        engine.gate.clear()
        waiting = [room.fetch(ticket(offer), wanted_of(GRAIN), WAIT_SECONDS) for _ in range(MOST_TRANSFERS)]
        while len(engine.inquiries) < MOST_TRANSFERS:
            threading.Event().wait(0.01)
        assert fetched(other, ticket(offer), wanted_of(GRAIN)) == ([], "refused")
        for each in waiting:
            assert each is not None
            room.done(each)
        engine.gate.set()
    other.close()


@pytest.mark.parametrize("way", WAYS)
def test_one_that_computes_is_waited_for_while_it_says_so(
    way: str, room: TransferRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "STALL_SECONDS", 1.2)
    monkeypatch.setattr(serving, "TICK_SECONDS", 0.1)
    root = prefix_root("model", b"tenant")
    for seconds, outcome in [(0.0, "stalled"), (WAIT_SECONDS, "")]:
        with played(4 * GRAIN) as (_, engine, offer):
            engine.gate.clear()
            fetch = room.fetch(by(way, source_of(offer, root, 4096, seconds)), wanted_of(4 * GRAIN), WAIT_SECONDS)
            assert fetch is not None
            threading.Event().wait(2.0)
            engine.gate.set()
            chunks = collect(room, fetch)
            assert (fetch.reason, len(chunks)) == (outcome, 0 if outcome else 4)


@pytest.mark.parametrize("way", WAYS)
def test_a_peer_that_dies_in_the_midst_is_a_loss(way: str, room: TransferRoom) -> None:
    with played(40 * GRAIN, hangs_at=GRAIN) as (_, _, offer):
        fetch = room.fetch(by(way, ticket(offer)), wanted_of(40 * GRAIN), WAIT_SECONDS)
        assert fetch is not None
        while (found := fetch.take()) is None:
            threading.Event().wait(0.01)
        channel = fetch._channel
        assert channel is not None
        channel._socket.shutdown(socket.SHUT_RDWR)  # as the peer's end would
        fetch.release(found[1])
        assert found[0].first == 0
        collect(room, fetch)
        assert fetch.reason == "lost"


def test_what_is_not_wanted_any_more_ends_at_the_peer_too(room: TransferRoom) -> None:
    with played(GRAIN) as (_, engine, offer):
        engine.gate.clear()
        fetch = room.fetch(ticket(offer), wanted_of(GRAIN), WAIT_SECONDS)
        while not engine.inquiries:
            threading.Event().wait(0.01)
        assert fetch is not None
        room.done(fetch)
        while not engine.inquiries[0].gone or not fetch.over:
            threading.Event().wait(0.01)
    assert room.num_fetches == 0


def pair(*, shared: bool = False) -> tuple[Channel, Channel]:
    """Two ends of a channel."""
    one, other = socket.socketpair()
    channels = Channel(one, shared=shared), Channel(other, shared=shared)
    for each in channels:
        each.allow(WAIT_SECONDS)
    return channels


def test_a_channel_waits_no_longer_than_it_may() -> None:
    one, other = pair()
    one.allow(0.05)
    with pytest.raises(Stalled):
        one.receive()
    one.allow(0.2)
    with pytest.raises(Stalled):
        one.send(Blocks(0, 16), [bytes(64 << 20)])  # nobody reads
    one.close()
    other.close()


def test_a_look_at_whether_the_peer_has_gone_waits_for_nothing() -> None:
    one, other = pair()
    other.send(End("so"))
    one.receive()  # which leaves the socket with a timeout
    one.allow(WAIT_SECONDS)
    assert not one.closed_by_peer()
    other.send(End("unread"))
    assert not one.closed_by_peer()
    one.receive()
    other.close()
    assert one.closed_by_peer()
    one.close()


def test_a_frame_that_is_cut_off_is_an_end() -> None:
    one, other = pair()
    one.send(End("so"))
    one.close()
    assert other.receive()[0] == End("so")
    with pytest.raises(EOFError):
        other.receive()
    other.close()


@pytest.mark.skipif(not available(), reason="there is no such memory here")
def test_shared_memory_is_checked_before_it_is_used() -> None:
    slots = SharedSlots.create(2, 4096)
    assert [slots.take(), slots.take(), slots.take()] == [1, 0, None]
    slots.release(1)
    for number in (1, 7, -1):
        with pytest.raises(ValueError, match="not taken"):
            slots.release(number)
    with pytest.raises(ValueError, match="no slot"):
        slots.slot(0, 5000)
    with pytest.raises(OSError, match="may shrink"):
        SharedSlots(os.dup(slots.descriptor), 3, 4096, writable=False)
    unsealed = os.memfd_create("plain")
    os.ftruncate(unsealed, 8192)
    with pytest.raises(OSError, match="may shrink"):
        SharedSlots(unsealed, 2, 4096, writable=False)
    slots.close()


def test_a_release_of_what_was_not_sent_ends_a_transfer(room: TransferRoom) -> None:
    if not available():
        pytest.skip("there is no such memory here")
    with played(20 * GRAIN) as (_, _, offer):
        fetch = room.fetch(ticket(offer), wanted_of(20 * GRAIN), WAIT_SECONDS)
        assert fetch is not None
        while fetch.take() is None:
            threading.Event().wait(0.01)
        channel = fetch._channel
        assert channel is not None
        channel.send(Release(99))
        collect(room, fetch)
        assert fetch.reason == "lost"
