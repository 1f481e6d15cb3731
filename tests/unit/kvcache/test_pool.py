"""BlockPool: counts, states, eviction order, and random use against a plain model of it."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from polyfleet.kvcache.pool import BlockPool


def test_gives_all_or_nothing() -> None:
    pool = BlockPool(3)
    taken = pool.allocate(2)
    assert taken is not None
    assert sorted(taken) == [0, 1]
    assert pool.allocate(2) is None
    assert pool.num_free == 1
    pool.release(taken)
    assert pool.num_free == 3
    pool.check()


def test_kept_blocks_are_cached_and_revived() -> None:
    pool = BlockPool(2)
    (block,) = pool.allocate(1) or []
    pool.keep(block)
    pool.release([block])
    assert list(pool.cached) == [block]
    assert pool.num_free == 2
    pool.share(block)
    assert pool.references(block) == 1
    assert pool.num_free == 1
    pool.check()


def test_evicts_the_least_recently_used_and_the_tail_of_a_chain_first() -> None:
    pool = BlockPool(4)
    evicted: list[int] = []
    pool.on_evict = evicted.append
    old, new = pool.allocate(2) or [], pool.allocate(2) or []
    for block in (*old, *new):
        pool.keep(block)
    pool.release(old)
    pool.release(new)
    pool.share(old[0])
    pool.release([old[0]])  # used again: now the most recent of all
    assert pool.allocate(4) is not None
    assert evicted == [old[1], new[1], new[0], old[0]]
    assert pool.evictions == 4
    pool.check()


def test_evicts_only_when_free_blocks_are_gone() -> None:
    pool = BlockPool(3)
    evicted: list[int] = []
    pool.on_evict = evicted.append
    (block,) = pool.allocate(1) or []
    pool.keep(block)
    pool.release([block])
    assert pool.allocate(2) is not None
    assert (evicted, pool.evictions) == ([], 0)
    assert pool.allocate(1) == [block]
    assert evicted == [block]
    assert pool.kept == frozenset()


def test_misuse_is_refused() -> None:
    pool = BlockPool(2)
    (block,) = pool.allocate(1) or []
    with pytest.raises(ValueError, match="private"):
        pool.share(block)
    with pytest.raises(ValueError, match="not in use"):
        pool.keep(1 - block)
    pool.release([block])
    with pytest.raises(ValueError, match="not in use"):
        pool.release([block])
    with pytest.raises(ValueError, match="at least one block"):
        BlockPool(0)
    pool.check()


def test_check_finds_a_lost_block() -> None:
    pool = BlockPool(2)
    pool._free.pop()
    with pytest.raises(AssertionError, match="lost"):
        pool.check()


class PoolMachine(RuleBasedStateMachine):
    """The model: references per block, which are kept, and the order in which cached ones were given up."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(6)
        self.pool.on_evict = self.evict
        self.references = dict.fromkeys(range(6), 0)
        self.kept: set[int] = set()
        self.cached: list[int] = []

    def evict(self, block: int) -> None:
        assert block == self.cached.pop(0)
        self.kept.remove(block)

    def used(self) -> list[int]:
        return [block for block, count in self.references.items() if count]

    @rule(count=st.integers(0, 7))
    def allocate(self, count: int) -> None:
        free = 6 - len(self.used())
        blocks = self.pool.allocate(count)
        assert (blocks is None) == (count > free)
        for block in blocks or ():
            assert not self.references[block]
            assert block not in self.kept
            self.references[block] = 1

    @precondition(lambda self: self.used())
    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.used()))
        self.pool.keep(block)
        self.kept.add(block)

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.kept)))
        self.pool.share(block)
        self.references[block] += 1
        if block in self.cached:
            self.cached.remove(block)

    @precondition(lambda self: self.used())
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(st.sampled_from(self.used()), min_size=1, max_size=3, unique=True))
        self.pool.release(blocks)
        for block in reversed(blocks):
            self.references[block] -= 1
            if not self.references[block] and block in self.kept:
                self.cached.append(block)

    @invariant()
    def agrees(self) -> None:
        self.pool.check()
        assert [self.pool.references(block) for block in range(6)] == list(self.references.values())
        assert self.pool.num_free == 6 - len(self.used())
        assert list(self.pool.cached) == self.cached
        assert self.pool.kept == self.kept


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
