"""Prefixes between engines that run: what is fetched, what is computed instead, and that all is balanced throughout."""

import select
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import pytest
from tests.support.giver import Giver
from tests.support.tiny_models import TinyShape, poisoned_model
from tests.unit.engine.test_exchange import PROMPT, Faulty, engine, run, tokens_of

from polyfleet.engine.engine import Engine
from polyfleet.kvcache.travelling import FAILURES
from polyfleet.loading.model import LoadedModel
from polyfleet.transfer.room import TransferRoom
from polyfleet.transfer.settings import TransferSettings
from polyfleet.wire.answers import SequenceUpdate
from polyfleet.wire.hashing import prefix_root
from polyfleet.wire.requests import SequenceRequest
from polyfleet.wire.tickets import PrefixSource, source_of

LONG = PROMPT + tuple(reversed(PROMPT[:40]))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return poisoned_model(tmp_path_factory.mktemp("travel"), TinyShape(), 95)


class Peer(NamedTuple):
    """One that gives prefixes, and what its engine has answered to LONG."""

    giver: Giver
    expected: list[int]

    @property
    def engine(self) -> Engine:
        """The engine that gives."""
        return self.giver.engine

    def source(self, name: str = "a model", salt: bytes = b"tenant", tokens: int = 4096) -> PrefixSource:
        """A ticket for its prefixes."""
        return source_of(self.giver.offer, prefix_root(name, salt), tokens)


@pytest.fixture
def peer(model: LoadedModel) -> Iterator[Peer]:
    target = engine(model)
    expected = tokens_of(run(target, LONG, salt=b"tenant"))
    there = Giver(target)
    yield Peer(there, expected)
    there.close()


@pytest.fixture
def room() -> Iterator[TransferRoom]:
    mine = TransferRoom(TransferSettings("127.0.0.1:0"))
    yield mine
    mine.close()


def ask(here: Engine, source: PrefixSource | None, salt: bytes = b"tenant") -> tuple[list[int], int]:
    """The tokens that follow LONG, and how many of its own were cached."""
    here.add(SequenceRequest("one", LONG, max_tokens=4, ignore_eos=True, cache_salt=salt, prefix_source=source))
    updates: list[SequenceUpdate] = []
    while here.has_work:
        updates += here.step()
        here.check()
    return tokens_of(updates), updates[0].cached_tokens or 0


def failures(here: Engine) -> dict[str, int]:
    """Those that there were."""
    return {why: count for why, count in zip(FAILURES, here.status().failed_fetches, strict=True) if count}


@pytest.mark.parametrize("block_size", [4, 16, 32])
def test_a_prefix_is_fetched_and_the_rest_computed(
    block_size: int, model: LoadedModel, peer: Peer, room: TransferRoom
) -> None:
    here = engine(model, block_size=block_size)
    here.attend(room)
    tokens, cached = ask(here, peer.source())
    assert tokens == peer.expected
    assert cached == 96
    status = here.status()
    assert (status.fetches, status.fetched_tokens, failures(here)) == (1, 96, {})
    assert peer.engine.status().given_tokens == 96
    assert ask(here, peer.source()) == (tokens, len(LONG) // block_size * block_size)  # nothing is fetched twice
    assert here.status().fetches == 1


def test_what_is_there_is_not_fetched_again(model: LoadedModel, peer: Peer, room: TransferRoom) -> None:
    here = engine(model)
    run(here, LONG[:36], salt=b"tenant")
    here.attend(room)
    assert ask(here, peer.source()) == (peer.expected, 96)
    assert here.status().fetched_tokens == 64


def test_news_of_what_is_over_wake_an_idle_engine_once(model: LoadedModel, peer: Peer, room: TransferRoom) -> None:
    here = engine(model)
    here.attend(room)
    assert ask(here, peer.source()) == (peer.expected, 96)
    room._tell()  # as a thread does whose transfer the engine has done with
    assert select.select([room.descriptor], [], [], 0)[0]
    here.woken()
    assert not here.has_work
    assert not select.select([room.descriptor], [], [], 0)[0]


@pytest.mark.parametrize("tokens", [0, 63, 2])
def test_little_is_computed(tokens: int, model: LoadedModel, peer: Peer, room: TransferRoom) -> None:
    here = engine(model)
    here.attend(room)
    assert ask(here, peer.source(tokens=tokens)) == (peer.expected, 0)
    assert not here.status().fetches


def test_others_get_nothing_and_compute(model: LoadedModel, peer: Peer, room: TransferRoom) -> None:
    here = engine(model)
    here.attend(room)
    wrong = [peer.source(salt=b"another"), replace(peer.source(), secret=b"?" * 32)]
    gone = replace(peer.source(), address="127.0.0.1:1", local="")
    for number, source in enumerate([*wrong, gone]):
        here._batcher.holdings.prefix_cache = False  # so that nothing is left for the next one
        assert ask(here, source)[0] == peer.expected
        here._batcher.holdings.prefix_cache = True
        assert sum(failures(here).values()) == number + 1
    assert failures(here) == {"refused": 2, "unreachable": 1}
    assert peer.engine.status().given_tokens == 0


def test_another_revision_gets_nothing(model: LoadedModel, peer: Peer, room: TransferRoom) -> None:
    here = engine(model, name="another revision")
    here.attend(room)
    assert ask(here, peer.source(name="another revision")) == (peer.expected, 0)
    assert failures(here) == {"refused": 1}


def test_what_the_peer_does_not_hold_is_computed(model: LoadedModel, peer: Peer, room: TransferRoom) -> None:
    here = engine(model)
    here.attend(room)
    tokens, cached = ask(here, peer.source(salt=b"nobody's"), salt=b"nobody's")
    assert (tokens, cached) == (peer.expected, 0)
    assert not failures(here)
    assert not here.status().fetches


def test_a_peer_that_stalls_delays_its_sequence_alone(
    model: LoadedModel, peer: Peer, room: TransferRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyfleet.transfer.fetching.STALL_SECONDS", 0.5)
    peer.giver.paused.set()
    here = engine(model)
    here.attend(room)
    here.add(SequenceRequest("late", LONG, max_tokens=4, ignore_eos=True, prefix_source=peer.source(salt=b"")))
    here.add(SequenceRequest("next", LONG[:20], max_tokens=2, ignore_eos=True))
    ended: list[str] = []
    while here.has_work:
        ended += [update.sequence_id for update in here.step() if update.finish_reason]
        here.check()
    assert ended == ["next", "late"]
    assert failures(here) == {"stalled": 1}


def test_one_that_is_cancelled_meanwhile_waits_for_nothing(model: LoadedModel, peer: Peer, room: TransferRoom) -> None:
    peer.giver.paused.set()
    here = engine(model)
    here.attend(room)
    here.add(SequenceRequest("one", LONG, max_tokens=4, prefix_source=peer.source(salt=b"")))
    here.step()
    here.cancel("one")
    while here.has_work:
        here.step()
    here.check()
    assert room.num_fetches == 0
    assert not failures(here)


def test_an_executor_that_can_not_write_computes(model: LoadedModel, peer: Peer, room: TransferRoom) -> None:
    here = engine(model)
    here.attend(room)
    assert here._exchange.layout
    assert isinstance(here._executor, Faulty)
    here._executor.fails = True
    assert ask(here, peer.source()) == (peer.expected, 0)
    assert peer.engine.status().given_tokens == 96


def test_an_executor_that_can_not_read_gives_nothing(model: LoadedModel, peer: Peer, room: TransferRoom) -> None:
    here = engine(model)
    here.attend(room)
    assert isinstance(peer.engine._executor, Faulty)
    assert peer.engine._exchange.layout
    peer.engine._executor.fails = True
    assert ask(here, peer.source()) == (peer.expected, 0)
    assert failures(here) == {"refused": 1}


def test_a_full_pool_takes_what_there_is_room_for(model: LoadedModel, peer: Peer, room: TransferRoom) -> None:
    here = engine(model, tokens=128)
    here.attend(room)
    here.add(SequenceRequest("holder", LONG[:50], max_tokens=40, ignore_eos=True))
    here.step()
    source = peer.source()
    here.add(SequenceRequest("one", LONG, max_tokens=4, ignore_eos=True, cache_salt=b"tenant", prefix_source=source))
    tokens: list[int] = []
    while here.has_work:
        for update in here.step():
            tokens += [each.token_id for each in update.tokens if update.sequence_id == "one"]
        here.check()
    assert tokens == peer.expected


def test_a_pace_slower_than_computing_is_not_tried_for_a_while(
    model: LoadedModel, peer: Peer, room: TransferRoom
) -> None:
    here = engine(model)
    here.attend(room)
    travel = here._travel
    assert travel is not None
    travel._pace._seconds_per_token, travel._prefill_rate = 1.05, lambda: 1.0
    assert ask(here, peer.source()) == (peer.expected, 0)
    assert failures(here) == {"slower": 1}
    assert travel._pace._seconds_per_token < 1.0  # the next one is fetched
