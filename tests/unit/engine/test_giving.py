"""Prompts that one engine computes for another: what arrives while it is computed, what is refused, who dies when."""

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from tests.support.giver import Giver
from tests.support.tiny_models import TinyShape, poisoned_model
from tests.unit.engine.test_exchange import POISON, PROMPT, engine, run, tokens_of
from tests.unit.engine.test_travel import LONG

from polyfleet.engine.engine import Engine
from polyfleet.kvcache.travelling import FAILURES
from polyfleet.loading.model import LoadedModel
from polyfleet.transfer.fetching import Fetch
from polyfleet.transfer.room import TransferRoom
from polyfleet.transfer.settings import TransferSettings
from polyfleet.wire.answers import SequenceUpdate
from polyfleet.wire.hashing import prefix_root
from polyfleet.wire.requests import SequenceRequest
from polyfleet.wire.tickets import PrefixSource, source_of

TENANT = b"tenant"
SECONDS = 60.0  # that the other engine may take


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return poisoned_model(tmp_path_factory.mktemp("giving"), TinyShape(), POISON)


@pytest.fixture(scope="module")
def expected(model: LoadedModel) -> list[int]:
    """What one engine alone says behind LONG."""
    return tokens_of(run(engine(model), LONG, salt=TENANT))


@pytest.fixture
def room() -> Iterator[TransferRoom]:
    mine = TransferRoom(TransferSettings("127.0.0.1:0"))
    yield mine
    mine.close()


@pytest.fixture
def peer(model: LoadedModel) -> Iterator[Giver]:
    """One that holds nothing."""
    there = Giver(engine(model))
    yield there
    there.close()


def source(peer: Giver, salt: bytes = TENANT, seconds: float = SECONDS, name: str = "a model") -> PrefixSource:
    return source_of(peer.offer, prefix_root(name, salt), len(LONG), seconds)


def here(model: LoadedModel, room: TransferRoom, **options: Any) -> Engine:
    mine = engine(model, **options)
    mine.attend(room)
    return mine


def start(mine: Engine, ticket: PrefixSource, prompt: tuple[int, ...] = LONG) -> None:
    mine.add(SequenceRequest("one", prompt, max_tokens=4, ignore_eos=True, cache_salt=TENANT, prefix_source=ticket))


def drained(mine: Engine) -> list[SequenceUpdate]:
    updates: list[SequenceUpdate] = []
    while mine.has_work:
        updates += mine.step()
        mine.check()
    return updates


def answer(mine: Engine, ticket: PrefixSource) -> tuple[list[int], int]:
    """The tokens behind LONG, and how many of its own were there when it started."""
    start(mine, ticket)
    updates = drained(mine)
    return tokens_of(updates), updates[0].cached_tokens or 0


def by_hand(peer: Giver) -> None:
    """It is stepped by the test, and takes three steps for LONG."""
    peer.paused.set()
    peer.engine._batcher._budget.most = 32


def failures(mine: Engine) -> dict[str, int]:
    counts = mine.status().failed_prefills_apart
    return {why: count for why, count in zip(FAILURES, counts, strict=True) if count}


@pytest.mark.parametrize(("theirs", "ours"), [(16, 16), (4, 16), (32, 16), (16, 32)])
def test_a_prompt_is_computed_elsewhere_and_gone_on_with_here(
    theirs: int, ours: int, model: LoadedModel, room: TransferRoom, expected: list[int]
) -> None:
    there = Giver(engine(model, block_size=theirs))
    mine = here(model, room, block_size=ours)
    assert answer(mine, source(there)) == (expected, 96)
    there.close()
    status, given = mine.status(), there.engine.status()
    assert (status.prefills_apart, status.fetches, failures(mine)) == (1, 0, {})
    assert status.fetch_tokens_per_second > 0
    assert (given.prompts_for_others, given.given_tokens) == (1, 96)
    assert (given.admitted, given.finished) == (1, 1)
    assert status.step_rows < 30  # the other 96 were computed there alone


def test_blocks_leave_while_the_rest_is_computed(
    model: LoadedModel, peer: Giver, room: TransferRoom, expected: list[int]
) -> None:
    by_hand(peer)
    mine, seen, updates = here(model, room), [], list[SequenceUpdate]()
    start(mine, source(peer))
    while not mine.status().prefills_apart:
        if peer.engine.has_work:
            peer.engine.step()
            seen.append((peer.engine.status().given_tokens, peer.engine.status().running_sequences))
        updates += mine.step()
    assert any(0 < given < 96 and running for given, running in seen)
    assert tokens_of(updates + drained(mine)) == expected


@pytest.mark.parametrize(("share", "most"), [(1e9, 4), (0.0, 1)])
def test_what_a_step_completed_leaves_before_the_next(
    share: float,
    most: int,
    model: LoadedModel,
    peer: Giver,
    room: TransferRoom,
    expected: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a step of 64 tokens four chunks, while there is time; else one for each peer, and it gets all the same."""
    monkeypatch.setattr("polyfleet.kvcache.travelling.CHUNK_BYTES", 1)
    monkeypatch.setattr("polyfleet.engine.travel.travel.HELD_UP_SHARE", share)
    monkeypatch.setattr("polyfleet.engine.travel.travel.MOST_HELD_UP", 60.0)
    peer.paused.set()
    mine, given, updates = here(model, room), [0], list[SequenceUpdate]()
    start(mine, source(peer))
    while mine.has_work:
        if peer.engine.has_work:
            peer.engine.step()
            given.append(peer.engine.status().given_tokens)
        updates += mine.step()
    assert max(after - before for before, after in pairwise(given)) == most * 16
    assert (tokens_of(updates), mine.status().prefills_apart) == (expected, 1)


def test_what_the_other_engine_computes_is_nobodys_news(model: LoadedModel, peer: Giver, room: TransferRoom) -> None:
    peer.paused.set()
    mine = here(model, room)
    start(mine, source(peer))
    peer.engine.add(SequenceRequest("its own", PROMPT[:20], max_tokens=3, ignore_eos=True))
    news: list[SequenceUpdate] = []
    while not mine.status().prefills_apart:
        news += peer.engine.step() if peer.engine.has_work else []
        mine.step()
    assert {each.sequence_id for each in news} == {"its own"}
    drained(mine)


def test_a_ticket_to_take_is_none_to_have_computed(
    model: LoadedModel, peer: Giver, room: TransferRoom, expected: list[int]
) -> None:
    mine, taking = here(model, room), source(peer, seconds=0.0)
    assert answer(mine, replace(taking, seconds=SECONDS)) == (expected, 0)
    assert peer.engine.status().prompts_for_others == 0
    forged = replace(taking, ticket=taking.ticket + b"\1", seconds=SECONDS)
    assert answer(here(model, room), forged)[0] == expected
    assert peer.engine.status().prompts_for_others == 0


@pytest.mark.parametrize("wrong", ["revision", "tenant", "secret", "adapter", "layout"])
def test_what_is_not_the_same_is_refused_and_computed_here(
    wrong: str, model: LoadedModel, peer: Giver, room: TransferRoom, expected: list[int], tmp_path: Any
) -> None:
    mine, ticket = here(model, room), source(peer)
    if wrong == "revision":
        mine, ticket = here(model, room, name="another"), source(peer, name="another")
    elif wrong == "tenant":
        ticket = source(peer, salt=b"another")
    elif wrong == "secret":
        ticket = replace(ticket, secret=b"?" * 32)
    elif wrong == "adapter":
        ticket = source_of(peer.offer, prefix_root("a model", TENANT, "ab" * 16), len(LONG), SECONDS)
    else:
        other = poisoned_model(tmp_path, TinyShape(layers=1), POISON)
        mine = here(other, room)
        expected = tokens_of(run(engine(other), LONG, salt=TENANT))
    assert answer(mine, ticket) == (expected, 0)
    assert failures(mine) == {"refused": 1}


@pytest.mark.parametrize("unable", ["too short", "keeps nothing", "computes nonsense"])
def test_one_that_can_not_compute_it_says_so(
    unable: str, model: LoadedModel, room: TransferRoom, expected: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    options: dict[str, dict[str, Any]] = {"too short": {"tokens": 96}, "keeps nothing": {"prefix_cache": False}}
    there, mine = Giver(engine(model, **options.get(unable, {}))), here(model, room)
    prompt = (*LONG[:80], POISON, *LONG[81:]) if unable == "computes nonsense" else LONG
    start(mine, source(there), prompt)
    updates = drained(mine)
    there.close()
    assert failures(mine) == {"refused": 1}
    assert "could not compute it" in caplog.text or "can't compute it" in caplog.text
    if unable == "computes nonsense":
        assert updates[-1].error  # here, too
    else:
        assert tokens_of(updates) == expected


def test_one_that_dies_in_the_midst_leaves_the_rest_to_be_computed(
    model: LoadedModel, peer: Giver, room: TransferRoom, expected: list[int]
) -> None:
    by_hand(peer)
    mine = here(model, room)
    start(mine, source(peer))
    assert mine._travel is not None
    arrival = mine._travel._arrivals[0]
    while not arrival.tokens:
        if peer.engine.has_work and not peer.engine.status().given_tokens:
            peer.engine.step()
        mine.step()
    assert isinstance(arrival.fetch, Fetch)
    assert arrival.fetch._channel is not None
    arrival.fetch._channel._socket.shutdown(socket.SHUT_RDWR)  # as the other one's death does
    updates = drained(mine)
    assert tokens_of(updates) == expected
    assert 0 < (updates[0].cached_tokens or 0) < 96
    assert failures(mine) == {"lost": 1}
    while peer.engine.has_work:
        peer.engine.step()  # it notices that nobody listens
    assert (peer.engine.status().waiting_sequences, peer.engine.status().running_sequences) == (0, 0)


def test_one_who_asked_and_is_gone_has_nothing_computed_any_more(
    model: LoadedModel, peer: Giver, room: TransferRoom
) -> None:
    by_hand(peer)
    mine = here(model, room)
    start(mine, source(peer))
    while not peer.engine.status().running_sequences:
        peer.engine.step()
        mine.step()
    mine.cancel("one")
    drained(mine)
    giving = peer.engine._travel.giving  # type: ignore[union-attr]
    while not giving._gifts[0].inquiry.gone:
        threading.Event().wait(0.01)
    while peer.engine.has_work:
        peer.engine.step()
    status = peer.engine.status()
    assert (status.admitted, status.cancelled) == (1, 1)
    assert status.free_blocks == peer.engine.facts.num_blocks


def test_one_that_is_too_slow_is_not_waited_for(
    model: LoadedModel, peer: Giver, room: TransferRoom, expected: list[int]
) -> None:
    peer.paused.set()
    mine = here(model, room)
    assert answer(mine, source(peer, seconds=0.5)) == (expected, 0)
    assert failures(mine) == {"stalled": 1}
    assert answer(mine, source(peer, salt=b"next", seconds=0.5))[0] == expected


def test_what_is_on_its_way_is_no_work_that_waits(model: LoadedModel, peer: Giver, room: TransferRoom) -> None:
    peer.paused.set()
    mine = here(model, room)
    start(mine, source(peer))
    assert mine.status().waiting_prefill_tokens == len(LONG) - 96
    mine.cancel("one")
    drained(mine)
    assert mine.status().waiting_prefill_tokens == 0
