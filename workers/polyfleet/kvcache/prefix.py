"""PrefixIndex: which full blocks hold which tokens, by chained hashes, so that equal beginnings are computed once."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from polyfleet.kvcache.pool import BlockPool
from polyfleet.wire.hashing import ROOT_HASH


@dataclass(slots=True)
class _Entry:
    block: int
    parent: bytes
    num_children: int = 0


class PrefixIndex:
    """Maps the hash of each full block of tokens (`polyfleet.wire.hashing`, chained to all before it) to its block.

    The blocks form a forest. Who holds a block holds all blocks before it, and BlockPool lets the tail of a chain go
    first, so only leaves are ever evicted and every entry can be reached. Two sequences that computed the same tokens
    at the same time end up with one block: `publish` names the survivor.

    Where rows see the last `seen` blocks alone, of which sequences give back all others, entries hang on nothing: any
    may go before any.
    """

    def __init__(self, pool: BlockPool, seen: int | None = None) -> None:
        self._pool = pool
        self._seen = seen
        self._entries: dict[bytes, _Entry] = {}
        self._hashes: dict[int, bytes] = {}
        pool.on_evict = self._forget
        self.on_forget: Callable[[bytes, int], None] = lambda chain_hash, block: None  # hears of evictions

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, hashes: Iterable[bytes]) -> list[int]:
        """The blocks of the longest known beginning of a chain. They are not held yet: `BlockPool.share` them."""
        blocks = []
        for each in hashes:
            entry = self._entries.get(each)
            if entry is None:
                break
            blocks.append(entry.block)
        return blocks

    def hit(self, hashes: Sequence[bytes]) -> tuple[int, list[int]]:
        """How many blocks of a chain's beginning need not be computed, and those of them that the rows behind see."""
        if self._seen is None:
            blocks = self.find(hashes)
            return len(blocks), blocks
        longest, run = 0, 0  # of known neighbours
        for count, each in enumerate(hashes, 1):
            run = run + 1 if each in self._entries else 0
            if run >= min(count, self._seen):
                longest = count
        seen = hashes[max(0, longest - self._seen) : longest]
        return longest, [self._entries[each].block for each in seen]

    def publish(self, chain_hash: bytes, parent: bytes, block: int) -> int:
        """Offer a block that is full and computed; returns the block that holds these tokens from now on.

        That is `block`, or an equal one published before, to which the caller's reference moves. `parent` is the hash
        of the block before it, published and held by the caller, or ROOT_HASH for the first, whatever its chain's root.
        """
        entry = self._entries.get(chain_hash)
        parent = parent if self._seen is None else ROOT_HASH
        if entry is None:
            self._entries[chain_hash] = _Entry(block, parent)
            self._hashes[block] = chain_hash
            self._pool.keep(block)
            if parent != ROOT_HASH:
                self._entries[parent].num_children += 1
            return block
        if entry.block != block:
            self._pool.share(entry.block)
            self._pool.release([block])
        return entry.block

    def check(self) -> None:
        """Raise AssertionError unless index and pool agree and every entry can be reached from a root."""
        assert {entry.block: key for key, entry in self._entries.items()} == self._hashes, "hashes and blocks differ"
        assert self._hashes.keys() == self._pool.kept, "a kept block is not in the index, or the other way round"
        num_children, num_holders = dict.fromkeys(self._entries, 0), dict.fromkeys(self._entries, 0)
        for entry in self._entries.values():
            if entry.parent == ROOT_HASH:
                continue
            assert entry.parent in self._entries, f"block {entry.block} hangs on nothing"
            num_children[entry.parent] += 1
            num_holders[entry.parent] += self._pool.references(entry.block)
        for key, entry in self._entries.items():
            assert entry.num_children == num_children[key], f"the children of block {entry.block} are miscounted"
            assert self._pool.references(entry.block) >= num_holders[key], f"a child of block {entry.block} outlives it"
        self._check_order()

    def _check_order(self) -> None:
        """Of the cached blocks each must be evicted before its parent."""
        position = {block: number for number, block in enumerate(self._pool.cached)}
        for entry in self._entries.values():
            if entry.parent == ROOT_HASH or entry.block not in position:
                continue
            parent = self._entries[entry.parent].block
            assert parent not in position or position[parent] > position[entry.block], (
                "a parent would go before its child"
            )

    def _forget(self, block: int) -> None:
        chain_hash = self._hashes.pop(block)
        entry = self._entries.pop(chain_hash)
        self.on_forget(chain_hash, block)
        assert not entry.num_children, f"block {block} was evicted before its children"
        if entry.parent != ROOT_HASH:
            self._entries[entry.parent].num_children -= 1
