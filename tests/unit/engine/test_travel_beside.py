"""Chunks that a thread writes beside steps: what goes on meanwhile, and that nothing is read, or lost, too early."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.unit.engine import test_exchange
from tests.unit.engine.test_exchange import PROMPT, Faulty, drained, engine, run, tokens_of
from tests.unit.engine.test_travel import LONG, Peer, ask, failures, model, peer, room

from polyfleet.engine.engine import Engine
from polyfleet.engine.executor import BlockImport
from polyfleet.loading.model import LoadedModel
from polyfleet.transfer.room import TransferRoom
from polyfleet.wire.answers import SequenceUpdate
from polyfleet.wire.requests import SequenceRequest

__all__ = ["model", "peer", "room"]
WAIT_SECONDS = 60.0  # guards against a hang alone


class Beside(Faulty):
    """Lets another thread write, where the gate is open, and knows by which thread that was done."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.gate, self.writing, self.writers = threading.Event(), threading.Event(), set[int]()
        self.gate.set()

    def begin_import(self, blocks: Sequence[int]) -> BlockImport:
        def write(caches: Sequence[NDArray[Any]]) -> None:
            self.writing.set()
            assert self.gate.wait(WAIT_SECONDS)
            self.writers.add(threading.get_ident())
            self.import_blocks(blocks, caches)

        return BlockImport(write)


@pytest.fixture
def here(model: LoadedModel, room: TransferRoom, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """An engine that takes 16 tokens in at a time."""
    monkeypatch.setattr("polyfleet.kvcache.travelling.CHUNK_BYTES", 1)
    monkeypatch.setattr(test_exchange, "Faulty", Beside)
    made = engine(model)
    made.attend(room)
    yield made
    executor_of(made).gate.set()
    made.close()


def executor_of(target: Engine) -> Beside:
    assert isinstance(target._executor, Beside)
    return target._executor


def begin(here: Engine, peer: Peer) -> None:
    """Fetch until something is being written, which the gate holds up."""
    executor = executor_of(here)
    executor.gate.clear()
    source = peer.source()
    here.add(SequenceRequest("one", LONG, max_tokens=4, ignore_eos=True, cache_salt=b"tenant", prefix_source=source))
    while not executor.writing.is_set():
        assert not here.step()
        here.check()


def test_chunks_are_written_by_a_thread_of_their_own_and_found(here: Engine, peer: Peer) -> None:
    assert ask(here, peer.source()) == (peer.expected, 96)
    assert executor_of(here).writers == {each.ident for each in threading.enumerate() if "kv import" in each.name}
    assert (here.status().fetches, here.status().fetched_tokens) == (1, 96)


def test_steps_go_on_while_a_chunk_is_written_which_nobody_reads_before(here: Engine, peer: Peer) -> None:
    begin(here, peer)
    here.add(SequenceRequest("next", LONG[:40], max_tokens=6, ignore_eos=True, cache_salt=b"tenant"))
    updates: list[SequenceUpdate] = []
    while not any(each.finish_reason for each in updates):
        updates += here.step()
        here.check()
    assert {each.sequence_id for each in updates} == {"next"}
    assert updates[0].cached_tokens == 0  # what is not written is not found
    executor_of(here).gate.set()
    rest = list(drained(here))
    assert tokens_of(rest) == peer.expected
    assert rest[0].cached_tokens == 96


def test_one_that_is_cancelled_gives_its_blocks_back_when_they_are_written(here: Engine, peer: Peer) -> None:
    free = here.status().free_blocks
    begin(here, peer)
    here.cancel("one")
    threading.Timer(0.05, executor_of(here).gate.set).start()
    while here.has_work:
        here.step()
        here.check()
    assert here.status().free_blocks == free
    assert tokens_of(run(here, LONG, salt=b"tenant")) == peer.expected


def test_a_peer_that_dies_while_a_chunk_is_written_leaves_what_had_come(here: Engine, peer: Peer) -> None:
    begin(here, peer)
    assert here._travel is not None
    fetch: Any = here._travel._arrivals[0].fetch
    fetch._channel.close()  # as a peer's end does that is killed
    executor_of(here).gate.set()
    updates = list(drained(here))
    assert tokens_of(updates) == peer.expected
    assert 16 <= (updates[0].cached_tokens or 0) <= 96


def test_what_can_not_be_written_is_computed_and_cleared(here: Engine, peer: Peer) -> None:
    begin(here, peer)
    executor = executor_of(here)
    executor.fails = True
    executor.gate.set()
    updates = list(drained(here))
    assert tokens_of(updates) == peer.expected
    assert updates[0].cached_tokens == 0
    assert not failures(here)
    executor.fails = False
    assert all(np.isfinite(each).all() for each in executor.export_blocks(range(16)))


def test_an_engine_that_is_closed_waits_for_what_is_being_written(here: Engine, peer: Peer) -> None:
    begin(here, peer)
    threading.Timer(0.05, executor_of(here).gate.set).start()
    here.close()
    assert executor_of(here).writers
    assert not any("kv import" in each.name for each in threading.enumerate())


def test_a_prompt_that_is_computed_meanwhile_is_kept_once(here: Engine, peer: Peer) -> None:
    begin(here, peer)
    assert tokens_of(list(run_beside(here))) == peer.expected
    executor_of(here).gate.set()
    assert tokens_of(list(drained(here))) == peer.expected
    here.check()
    assert len(here._batcher.prefixes) == (len(LONG) + 3) // 16  # and what was generated


def run_beside(here: Engine) -> Iterator[Any]:
    """The same prompt, computed."""
    here.add(SequenceRequest("computed", LONG, max_tokens=4, ignore_eos=True, cache_salt=b"tenant"))
    ended = False
    while not ended:
        for update in here.step():
            ended = ended or update.finish_reason is not None
            yield update
        here.check()


def test_a_pool_without_room_takes_nothing_more(here: Engine, peer: Peer) -> None:
    here.add(SequenceRequest("holder", PROMPT, max_tokens=50, ignore_eos=True))
    here.add(SequenceRequest("second", PROMPT[::-1], max_tokens=50, ignore_eos=True))
    here.step()
    fetched = SequenceRequest(
        "one", LONG, max_tokens=4, ignore_eos=True, cache_salt=b"tenant", prefix_source=peer.source()
    )
    here.add(fetched)
    tokens: list[int] = []
    for update in drained(here):
        tokens += [each.token_id for each in update.tokens if update.sequence_id == "one"]
    assert tokens == peer.expected
