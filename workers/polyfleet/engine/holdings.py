"""Holdings: the slots and the KV blocks that running sequences hold, and what ended ones hold a little longer."""

from collections import Counter
from collections.abc import Iterable

from polyfleet.engine.executor import Capacity
from polyfleet.engine.plan import Assembler
from polyfleet.engine.sequence import Place, Sequence
from polyfleet.kvcache.pool import BlockPool
from polyfleet.kvcache.prefix import PrefixIndex
from polyfleet.wire.hashing import ROOT_HASH


class Holdings:
    """Hands out slots, each with a generation (how often it was given out), and blocks; tells the Assembler of both.

    A sequence that leaves while steps with rows of its own are under way keeps its slot, and the blocks that these
    steps write, until the last of them is collected. All other blocks are free at once: whoever gets them writes in
    steps behind those that still read them.
    """

    def __init__(self, capacity: Capacity, prefix_cache: bool) -> None:
        self.pool = BlockPool(capacity.num_blocks)
        self.prefixes = PrefixIndex(self.pool)
        self.assembler = Assembler(capacity.max_sequences, capacity.max_blocks)
        self.block_size = capacity.block_size
        self.prefix_cache = prefix_cache
        self._generations = [0] * capacity.max_sequences
        self._free_slots = list(range(capacity.max_sequences - 1, -1, -1))
        self._left: dict[Place, tuple[int, list[int]]] = {}  # the last step under way, and the blocks kept until then
        self._collected = 0  # steps

    @property
    def num_free_slots(self) -> int:
        """How many more sequences may run."""
        return len(self._free_slots)

    @property
    def has_slot(self) -> bool:
        """Whether one more sequence finds a slot."""
        return bool(self._free_slots)

    def start(self, sequence: Sequence, reserved: int) -> bool:
        """Give a sequence a slot and blocks for its tokens, less those of a known beginning.

        False, and nothing given, where that would leave fewer than `reserved` blocks, or there is no slot.
        """
        hits = self._find_prefix(sequence)
        needed = -(-sequence.num_tokens // self.block_size) - len(hits)
        revived = sum(not self.pool.references(block) for block in hits)
        if not self._free_slots or needed + revived + reserved > self.pool.num_free:
            return False
        for block in hits:
            self.pool.share(block)
        sequence.blocks = hits + (self.pool.allocate(needed) or [])
        sequence.num_computed = sequence.num_settled = len(hits) * self.block_size
        sequence.num_published = len(hits)
        slot = self._free_slots.pop()
        self._generations[slot] += 1
        sequence.place = (slot, self._generations[slot])
        self.assembler.start(slot, sequence)
        return True

    def grow(self, sequence: Sequence, drafts: int = 0) -> bool:
        """Give a running sequence blocks for all its tokens, and for drafts behind them; False where there are none."""
        missing = -(-(sequence.num_tokens + drafts) // self.block_size) - len(sequence.blocks)
        if missing <= 0:
            return True
        blocks = self.pool.allocate(missing)
        if blocks is None:
            return False
        self.assembler.set_blocks(sequence.slot, len(sequence.blocks), blocks)
        sequence.blocks += blocks
        return True

    def shrink(self, sequence: Sequence) -> None:
        """Take blocks back that only drafts had, which proved wrong. No step under way writes them."""
        needed = -(-sequence.num_tokens // self.block_size)
        if needed < len(sequence.blocks):
            self.pool.release(sequence.blocks[needed:])
            del sequence.blocks[needed:]

    def grows(self, sequence: Sequence) -> bool:
        """Whether a running sequence will want more blocks than it has: never where a block holds a whole context."""
        return sequence.longest > len(sequence.blocks) * self.block_size

    def publish(self, sequence: Sequence) -> None:
        """Offer the blocks that were filled and found good since the last time to the PrefixIndex."""
        num_full = sequence.num_settled // self.block_size
        first = sequence.num_published
        if num_full <= first or not self.prefix_cache:
            return
        hashes = sequence.chain(num_full, self.block_size)
        for index in range(first, num_full):
            parent, block = hashes[index - 1] if index else ROOT_HASH, sequence.blocks[index]
            published = self.prefixes.publish(hashes[index], parent, block)
            if published != block:  # an equal one was there before
                sequence.blocks[index] = published
                self.assembler.set_blocks(sequence.slot, index, (published,))
        sequence.num_published = num_full

    def leave(self, sequence: Sequence, *, doubtful: bool = False) -> None:
        """Take back what a sequence holds; `doubtful` where its blocks may hold numbers that are not finite."""
        place, blocks = sequence.place, sequence.blocks
        if place is None:
            return
        if doubtful:
            self.assembler.clear(blocks[sequence.num_published :])
        if sequence.last_step > self._collected:
            written = sequence.num_settled // self.block_size
            self._left[place] = (sequence.last_step, blocks[written:])
            blocks = blocks[:written]
        else:
            self._free_slots.append(place[0])
        self.pool.release(blocks)
        sequence.forget_computed()

    def collected(self, step: int, doubtful: Iterable[Place]) -> None:
        """A step is over: what was kept for it is free. `doubtful` are those whose rows of it were not good."""
        self._collected = step
        if not self._left:
            return
        for place in doubtful:
            if place in self._left:
                self.assembler.clear(self._left[place][1])
        for place in [place for place, (last_step, _) in self._left.items() if last_step <= step]:
            _, blocks = self._left.pop(place)
            self.pool.release(blocks)
            self._free_slots.append(place[0])

    def check(self, running: list[Sequence]) -> None:
        """Raise AssertionError unless slots, blocks, pool and index agree."""
        self.pool.check()
        self.prefixes.check()
        holders = Counter(block for each in running for block in each.blocks)
        holders.update(block for _, blocks in self._left.values() for block in blocks)
        for block in range(self.pool.num_blocks):
            assert self.pool.references(block) == holders[block], f"block {block} is held by nobody or not counted"
        held = [each.slot for each in running] + [slot for slot, _ in self._left] + self._free_slots
        assert sorted(held) == list(range(len(self._generations))), "a slot is lost or held twice"

    def _find_prefix(self, sequence: Sequence) -> list[int]:
        """Computed blocks of its beginning; at least one token is left to compute, for something must be drawn."""
        if not self.prefix_cache or not sequence.reads_prefix:
            return []
        return self.prefixes.find(sequence.chain((sequence.num_tokens - 1) // self.block_size, self.block_size))
