"""Holdings: the slots and the KV blocks that running sequences hold, and what ended ones hold a little longer."""

from collections import Counter
from collections.abc import Iterable

from polyfleet.engine.executor import Capacity
from polyfleet.engine.plan import Assembler
from polyfleet.engine.sequence import Place, Sequence
from polyfleet.kvcache.pool import BlockPool
from polyfleet.kvcache.prefix import PrefixIndex
from polyfleet.wire.hashing import ROOT_HASH


def least_tokens(context_length: int, horizon: int, capacity: Capacity) -> int:
    """What a pool must have room for, so that one sequence comes to its end alone."""
    return held_tokens(context_length, horizon, capacity.step_tokens, capacity.block_size)


def held_tokens(context_length: int, horizon: int, step_tokens: int, block_size: int) -> int:
    """Tokens whose blocks a sequence of this length holds at most when no step is under way."""
    whole = -(-context_length // block_size) * block_size
    most = -(-(horizon + step_tokens) // block_size) + 3  # they begin and end within blocks, and come back late by one
    return min(whole, most * block_size) if horizon else whole


class Holdings:
    """Hands out slots, each with a generation (how often it was given out), and blocks; tells the Assembler of both.

    A sequence that leaves while steps with rows of its own are under way keeps its slot, and the blocks that these
    steps write, until the last of them is collected. All other blocks are free at once: whoever gets them writes in
    steps behind those that still read them.

    With a horizon a sequence holds the blocks that its next row sees, and those of one more step: what lies before it
    gives back as its rows prove good. Tables have a block of its own in their places, which nobody reads there. A
    cached beginning is good where the blocks are known that the next row sees.
    """

    def __init__(self, capacity: Capacity, prefix_cache: bool, horizon: int = 0) -> None:
        self.pool = BlockPool(capacity.num_blocks)
        self.prefixes = PrefixIndex(self.pool, -(-(horizon - 1) // capacity.block_size) if horizon else None)
        self._horizon = horizon
        self._step_tokens = capacity.step_tokens
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
        found, hits = self._find_prefix(sequence)
        needed = -(-self._wanted(sequence, found * self.block_size) // self.block_size) - found
        revived = sum(not self.pool.references(block) for block in hits)
        if not self._free_slots or needed + revived + reserved > self.pool.num_free:
            return False
        for block in hits:
            self.pool.share(block)
        blocks = hits + (self.pool.allocate(needed) or [])
        sequence.num_returned = found - len(hits)
        sequence.blocks = blocks[:1] * sequence.num_returned + blocks
        sequence.num_computed = sequence.num_settled = found * self.block_size
        sequence.num_published = found
        slot = self._free_slots.pop()
        self._generations[slot] += 1
        sequence.place = (slot, self._generations[slot])
        self.assembler.start(slot, sequence)
        return True

    def grow(self, sequence: Sequence, drafts: int = 0) -> bool:
        """Give a running sequence blocks for all its tokens, or the next step's, and for drafts behind them.

        False where there are none.
        """
        wanted = self._wanted(sequence, sequence.num_computed) if self._horizon else sequence.num_tokens
        missing = -(-(wanted + drafts) // self.block_size) - len(sequence.blocks)
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

    def _wanted(self, sequence: Sequence, num_computed: int) -> int:
        """Tokens that must have blocks."""
        return min(sequence.num_tokens, num_computed + self._step_tokens) if self._horizon else sequence.num_tokens

    def settled(self, sequence: Sequence) -> None:
        """Rows of a sequence were found good: offer its full blocks to the PrefixIndex, give back what no row sees."""
        self._publish(sequence)
        if self._horizon:
            behind = (sequence.num_settled + 1 - self._horizon) // self.block_size
            self._give_back(sequence, min(behind, len(sequence.blocks) - 1))

    def _give_back(self, sequence: Sequence, behind: int) -> None:
        """The leading blocks up to `behind`."""
        if behind > sequence.num_returned:
            self.pool.release(sequence.blocks[sequence.num_returned : behind])
            sequence.num_returned = behind
            self._stand_in(sequence)

    def _stand_in(self, sequence: Sequence) -> None:
        """The first block that it holds in the places of those before."""
        count = sequence.num_returned
        sequence.blocks[:count] = sequence.blocks[count : count + 1] * count
        self.assembler.set_blocks(sequence.slot, 0, sequence.blocks[:count])

    def _publish(self, sequence: Sequence) -> None:
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
                if index == sequence.num_returned:
                    self._stand_in(sequence)
        sequence.num_published = num_full

    def leave(self, sequence: Sequence, *, doubtful: bool = False) -> None:
        """Take back what a sequence holds; `doubtful` where its blocks may hold numbers that are not finite."""
        place, held = sequence.place, sequence.num_returned
        if place is None:
            return
        blocks = sequence.blocks[held:]
        if doubtful:
            self.assembler.clear(sequence.blocks[max(held, sequence.num_published) :])
        if sequence.last_step > self._collected:
            written = sequence.num_settled // self.block_size - held
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
        holders = Counter(block for each in running for block in each.blocks[each.num_returned :])
        holders.update(block for _, blocks in self._left.values() for block in blocks)
        for block in range(self.pool.num_blocks):
            assert self.pool.references(block) == holders[block], f"block {block} is held by nobody or not counted"
        held = [each.slot for each in running] + [slot for slot, _ in self._left] + self._free_slots
        assert sorted(held) == list(range(len(self._generations))), "a slot is lost or held twice"

    def _find_prefix(self, sequence: Sequence) -> tuple[int, list[int]]:
        """How many blocks of its beginning are computed, and the last of them, which are to be held.

        At least one token is left to compute, for something must be drawn.
        """
        if not self.prefix_cache or not sequence.reads_prefix:
            return 0, []
        return self.prefixes.hit(sequence.chain((sequence.num_tokens - 1) // self.block_size, self.block_size))
