"""Lane: one pool's blocks, those that sequences hold of it, and the beginnings that stand in them."""

from collections import Counter
from collections.abc import Callable, Iterable

from polyfleet.engine.step.plan import Assembler
from polyfleet.engine.step.sequence import Held, Sequence
from polyfleet.kvcache.pool import BlockPool
from polyfleet.kvcache.prefix import PrefixIndex
from polyfleet.wire.hashing import ROOT_HASH


class Lane:
    """With a horizon a sequence holds the blocks that its next row sees, and those of one more step.

    What lies before gives back as its rows prove good; tables have a block of its own in those places, which nobody
    reads there. A cached beginning is good where the blocks are known that the next row sees.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        horizon: int,
        step_tokens: int,
        assembler: Assembler,
        held: Callable[[Sequence], Held],
        *,
        column: int = 0,
        first: int = 0,
    ) -> None:
        """`column`: where its blocks begin in block tables; `first`: the number of its block 0 where lanes are one."""
        self.pool = BlockPool(num_blocks)
        self.prefixes = PrefixIndex(self.pool, -(-(horizon - 1) // block_size) if horizon else None)
        self._block_size, self._horizon, self._step_tokens = block_size, horizon, step_tokens
        self._assembler, self._column, self._first, self._held = assembler, column, first, held

    def needed(self, sequence: Sequence, found: int) -> int:
        """Blocks to allocate for a sequence of which `found` leading ones are known."""
        return -(-self._wanted(sequence, found * self._block_size) // self._block_size) - found

    def has(self, needed: int, hits: list[int]) -> bool:
        """Whether it has so many blocks beside those that are known."""
        revived = sum(not self.pool.references(block) for block in hits)
        return needed + revived <= self.pool.num_free

    def start(self, sequence: Sequence, found: int, hits: list[int], needed: int) -> None:
        """Give a sequence what `needed` and `has` said; of the known blocks it holds the last ones, `hits`."""
        for block in hits:
            self.pool.share(block)
        held, blocks = self._held(sequence), hits + (self.pool.allocate(needed) or [])
        held.num_returned, held.num_published = found - len(hits), found
        held.blocks = blocks[:1] * held.num_returned + blocks

    def fill_table(self, sequence: Sequence) -> None:
        """Tell the Assembler of all its blocks."""
        self._assembler.set_blocks(sequence.slot, self._column, self._held(sequence).blocks)

    def missing(self, sequence: Sequence, drafts: int) -> int:
        """Blocks that a running sequence wants more, for the next step's tokens and for drafts behind them."""
        wanted = self._wanted(sequence, sequence.num_computed) + drafts
        return -(-wanted // self._block_size) - len(self._held(sequence).blocks)

    def grow(self, sequence: Sequence, count: int) -> None:
        """Give it so many, which there are."""
        blocks, held = self.pool.allocate(count) or [], self._held(sequence).blocks
        self._assembler.set_blocks(sequence.slot, self._column + len(held), blocks)
        held += blocks

    def shrink(self, sequence: Sequence) -> None:
        """Take back what only drafts had."""
        needed, blocks = -(-sequence.num_tokens // self._block_size), self._held(sequence).blocks
        if needed < len(blocks):
            self.pool.release(blocks[needed:])
            del blocks[needed:]

    def settled(self, sequence: Sequence, *, publishes: bool) -> None:
        """Rows were found good: offer full blocks to the PrefixIndex, give back what no row sees."""
        if publishes:
            self._publish(sequence)
        if self._horizon:
            held = self._held(sequence)
            behind = (sequence.num_settled + 1 - self._horizon) // self._block_size
            behind = min(behind, len(held.blocks) - 1)
            if behind > held.num_returned:
                self.pool.release(held.blocks[held.num_returned : behind])
                held.num_returned = behind
                self._stand_in(sequence)

    def leave(self, sequence: Sequence, *, doubtful: bool, under_way: bool) -> list[int]:
        """Take back what it holds, but for those blocks that steps under way write."""
        held = self._held(sequence)
        if doubtful:
            self.clear(held.blocks[max(held.num_returned, held.num_published) :])
        blocks = held.blocks[held.num_returned :]
        written = sequence.num_settled // self._block_size - held.num_returned if under_way else len(blocks)
        self.pool.release(blocks[:written])
        return blocks[written:]

    def clear(self, blocks: Iterable[int]) -> None:
        """Have blocks cleared at the beginning of the next step."""
        self._assembler.clear([self._first + block for block in blocks])

    def written(self, blocks: Iterable[int]) -> None:
        """They need not be cleared any more."""
        self._assembler.written([self._first + block for block in blocks])

    def check(self, running: list[Sequence], left: Iterable[list[int]]) -> None:
        """Raise AssertionError unless blocks, pool and index agree; `left`: kept for steps under way."""
        self.pool.check()
        self.prefixes.check()
        holders: Counter[int] = Counter()
        for each in map(self._held, running):
            holders.update(each.blocks[each.num_returned :])
        for blocks in left:
            holders.update(blocks)
        for block in range(self.pool.num_blocks):
            assert self.pool.references(block) == holders[block], f"block {block} is held by nobody or not counted"

    def _wanted(self, sequence: Sequence, num_computed: int) -> int:
        """Tokens that must have blocks."""
        return min(sequence.num_tokens, num_computed + self._step_tokens) if self._horizon else sequence.num_tokens

    def _stand_in(self, sequence: Sequence) -> None:
        """The first block that it holds in the places of those before."""
        held = self._held(sequence)
        count = held.num_returned
        held.blocks[:count] = held.blocks[count : count + 1] * count
        self._assembler.set_blocks(sequence.slot, self._column, held.blocks[:count])

    def _publish(self, sequence: Sequence) -> None:
        held, num_full = self._held(sequence), sequence.num_settled // self._block_size
        first = held.num_published
        if num_full <= first:
            return
        hashes = sequence.chain(num_full, self._block_size)
        for index in range(first, num_full):
            parent, block = hashes[index - 1] if index else ROOT_HASH, held.blocks[index]
            published = self.prefixes.publish(hashes[index], parent, block)
            if published != block:  # an equal one was there before
                held.blocks[index] = published
                self._assembler.set_blocks(sequence.slot, self._column + index, (published,))
                if index == held.num_returned:
                    self._stand_in(sequence)
        held.num_published = num_full
