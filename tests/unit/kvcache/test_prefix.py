"""PrefixIndex: what is found, what survives, what is evicted, and random sequences over a store that remembers."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from polyfleet.kvcache.pool import BlockPool
from polyfleet.kvcache.prefix import PrefixIndex
from polyfleet.wire.hashing import ROOT_HASH, chain_hashes

BLOCK_SIZE = 2


def publish(index: PrefixIndex, token_ids: list[int], blocks: list[int], known: int = 0) -> list[int]:
    """Publish all full blocks of a sequence behind `known` ones; returns its blocks from then on."""
    hashes = list(chain_hashes(token_ids, BLOCK_SIZE))
    blocks = list(blocks)
    for number in range(known, len(hashes)):
        parent = hashes[number - 1] if number else ROOT_HASH
        blocks[number] = index.publish(hashes[number], parent, blocks[number])
    return blocks


def find(index: PrefixIndex, token_ids: list[int]) -> list[int]:
    return index.find(chain_hashes(token_ids, BLOCK_SIZE))


def test_finds_the_longest_beginning() -> None:
    pool = BlockPool(8)
    index = PrefixIndex(pool)
    blocks = publish(index, [1, 2, 3, 4, 5, 6], pool.allocate(3) or [])
    assert find(index, [1, 2, 3, 4, 5, 6, 7]) == blocks
    assert find(index, [1, 2, 3, 4, 9, 9]) == blocks[:2]
    assert find(index, [3, 4]) == []  # the same tokens, but not behind the same ones
    index.check()


def test_equal_blocks_become_one() -> None:
    pool = BlockPool(8)
    index = PrefixIndex(pool)
    first = publish(index, [1, 2, 3, 4], pool.allocate(2) or [])
    second = publish(index, [1, 2, 9, 9], pool.allocate(2) or [])
    assert second[0] == first[0]
    assert second[1] != first[1]
    assert pool.references(first[0]) == 2
    assert pool.num_free == 8 - 3
    index.check()
    pool.release(first)
    index.check()  # the shared block stays below the second sequence
    pool.release(second)
    assert pool.num_free == 8
    index.check()


def test_leaves_are_evicted_first_and_forgotten() -> None:
    pool = BlockPool(3)
    index = PrefixIndex(pool)
    blocks = publish(index, [1, 2, 3, 4, 5, 6], pool.allocate(3) or [])
    pool.release(blocks)
    assert pool.allocate(1) == [blocks[2]]
    assert find(index, [1, 2, 3, 4, 5, 6]) == blocks[:2]
    index.check()
    assert pool.allocate(2) is not None
    assert len(index) == 0
    index.check()


def test_check_finds_a_block_that_hangs_on_nothing() -> None:
    pool = BlockPool(2)
    index = PrefixIndex(pool)
    blocks = publish(index, [1, 2, 3, 4], pool.allocate(2) or [])
    del index._entries[index._hashes.pop(blocks[0])]
    pool._kept.remove(blocks[0])
    with pytest.raises(AssertionError, match="hangs on nothing"):
        index.check()


class PrefixMachine(RuleBasedStateMachine):
    """Sequences start, grow and end in random order; a store beside the pool remembers what each block holds."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(7)
        self.index = PrefixIndex(self.pool)
        self.store: dict[int, tuple[int, ...]] = {}
        self.running: list[tuple[list[int], list[int]]] = []  # token ids, blocks

    def compute(self, token_ids: list[int], blocks: list[int], known: int) -> list[int]:
        for number in range(known, len(blocks)):
            self.store[blocks[number]] = tuple(token_ids[: (number + 1) * BLOCK_SIZE])
        return publish(self.index, token_ids, blocks, known)

    @rule(token_ids=st.lists(st.integers(0, 1), min_size=1, max_size=8))
    def start(self, token_ids: list[int]) -> None:
        token_ids = token_ids[: len(token_ids) // BLOCK_SIZE * BLOCK_SIZE]
        hits = find(self.index, token_ids)
        for number, block in enumerate(hits):
            assert self.store[block] == tuple(token_ids[: (number + 1) * BLOCK_SIZE])
            self.pool.share(block)
        rest = self.pool.allocate(len(token_ids) // BLOCK_SIZE - len(hits))
        if rest is None:
            self.pool.release(hits)
            return
        self.running.append((token_ids, self.compute(token_ids, hits + rest, len(hits))))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), more=st.tuples(st.integers(0, 1), st.integers(0, 1)))
    def grow(self, data: st.DataObject, more: tuple[int, int]) -> None:
        number = data.draw(st.integers(0, len(self.running) - 1))
        token_ids, blocks = self.running[number]
        if (extra := self.pool.allocate(1)) is None:
            return
        token_ids = [*token_ids, *more]
        self.running[number] = (token_ids, self.compute(token_ids, blocks + extra, len(blocks)))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        _, blocks = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.pool.release(blocks)

    @invariant()
    def holds(self) -> None:
        self.pool.check()
        self.index.check()
        held = {block for _, blocks in self.running for block in blocks}
        assert self.pool.num_free == 7 - len(held)
        for token_ids, blocks in self.running:
            assert find(self.index, token_ids) == blocks  # who holds a block can find it


TestPrefixMachine = PrefixMachine.TestCase
TestPrefixMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
