"""Holdings: the slots and the KV blocks that running sequences hold, and what ended ones hold a little longer."""

from collections.abc import Callable, Iterable
from operator import attrgetter

from polyfleet.engine.batching.lane import Lane
from polyfleet.engine.executor import Capacity
from polyfleet.engine.step.plan import Assembler
from polyfleet.engine.step.sequence import Place, Sequence
from polyfleet.kvcache.pool import BlockPool
from polyfleet.kvcache.prefix import PrefixIndex

SPARE_BLOCKS = 3  # of a window: it begins and ends within blocks, and they come back late by one


def least_tokens(context_length: int, horizon: int, capacity: Capacity) -> int:
    """What a pool must have room for, so that one sequence comes to its end alone."""
    return held_tokens(context_length, horizon, capacity.step_tokens, capacity.block_size)


def held_tokens(context_length: int, horizon: int, step_tokens: int, block_size: int) -> int:
    """Tokens whose blocks a sequence of this length holds at most when no step is under way."""
    whole = -(-context_length // block_size) * block_size
    most = -(-(horizon + step_tokens) // block_size) + SPARE_BLOCKS
    return min(whole, most * block_size) if horizon else whole


def local_blocks(num_blocks: int, window: int, max_sequences: int, step_tokens: int, block_size: int) -> int:
    """Blocks of a pool for caches with a window beside one of `num_blocks` for all others: as many sequences run."""
    of_windows = max_sequences * (-(-window // block_size) + SPARE_BLOCKS)
    return min(num_blocks, of_windows + 2 * -(-step_tokens // block_size))


class Holdings:
    """Hands out slots, each with a generation (how often it was given out), and blocks; tells the Assembler of both.

    A sequence that leaves while steps with rows of its own are under way keeps its slot, and the blocks that these
    steps write, until the last of them is collected. All other blocks are free at once: whoever gets them writes in
    steps behind those that still read them.

    Blocks are of one pool or, where some caches are read through a window and others whole, of two.
    """

    def __init__(self, capacity: Capacity, prefix_cache: bool, horizon: int = 0, window: int = 0) -> None:
        """`horizon`: of all caches; `window`: of those alone that `capacity.local_blocks` are for."""
        self.assembler = Assembler(capacity.max_sequences, capacity.table_width)
        shared = capacity.block_size, horizon, capacity.step_tokens, self.assembler
        self.lanes = [Lane(capacity.num_blocks, *shared, attrgetter("held"))]
        if capacity.local_blocks:
            shared = capacity.block_size, window, capacity.step_tokens, self.assembler
            first, column = capacity.num_blocks, capacity.max_blocks
            held = attrgetter("local")
            self.lanes.append(Lane(capacity.local_blocks, *shared, held, column=column, first=first))
        self.block_size = capacity.block_size
        self.prefix_cache = prefix_cache
        self.before_write: Callable[[], None] = lambda: None  # called before anything is written to blocks
        self.before_start: Callable[[Sequence], None] = lambda sequence: None  # before its blocks are looked for
        self.arriving: dict[object, list[list[int]]] = {}  # of each lane blocks that nobody's sequence holds, by whose
        self._generations = [0] * capacity.max_sequences
        self._free_slots = list(range(capacity.max_sequences - 1, -1, -1))
        self._left: dict[Place, tuple[int, list[list[int]]]] = {}  # the last step under way, and blocks kept until then
        self._collected = 0  # steps

    @property
    def pool(self) -> BlockPool:
        """The first lane's: of caches that see all, where there are some."""
        return self.lanes[0].pool

    @property
    def prefixes(self) -> PrefixIndex:
        """The first lane's."""
        return self.lanes[0].prefixes

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
        if self._free_slots:
            self.before_start(sequence)
        found, hits = self._find_prefix(sequence)
        needed = [lane.needed(sequence, found) for lane in self.lanes]
        if not self._free_slots or not all(
            lane.has(count + reserved, known) for lane, count, known in zip(self.lanes, needed, hits, strict=True)
        ):
            return False
        slot = self._free_slots.pop()
        self._generations[slot] += 1
        sequence.place = (slot, self._generations[slot])
        for lane, count, known in zip(self.lanes, needed, hits, strict=True):
            lane.start(sequence, found, known, count)
        sequence.num_computed = sequence.num_settled = found * self.block_size
        self.assembler.start(slot, sequence)
        for lane in self.lanes[1:]:
            lane.fill_table(sequence)
        self._measure(sequence)
        return True

    def grow(self, sequence: Sequence, drafts: int = 0) -> bool:
        """Give a running sequence blocks for all its tokens, or the next step's, and for drafts behind them.

        False, and nothing given, where there are none.
        """
        missing = [lane.missing(sequence, drafts) for lane in self.lanes]
        if any(count > lane.pool.num_free for lane, count in zip(self.lanes, missing, strict=True)):
            return False
        for lane, count in zip(self.lanes, missing, strict=True):
            if count > 0:
                lane.grow(sequence, count)
        self._measure(sequence)
        return True

    def shrink(self, sequence: Sequence) -> None:
        """Take blocks back that only drafts had, which proved wrong. No step under way writes them."""
        for lane in self.lanes:
            lane.shrink(sequence)
        self._measure(sequence)

    def _measure(self, sequence: Sequence) -> None:
        """Tell a sequence for how many tokens it has blocks."""
        count = len(sequence.held.blocks)
        if len(self.lanes) > 1:
            count = min(count, len(sequence.local.blocks))
        sequence.room = count * self.block_size

    def settled(self, sequence: Sequence) -> None:
        """Rows of a sequence were found good: offer its full blocks to the PrefixIndex, give back what no row sees."""
        for lane in self.lanes:
            lane.settled(sequence, publishes=self.prefix_cache)

    def leave(self, sequence: Sequence, *, doubtful: bool = False) -> None:
        """Take back what a sequence holds; `doubtful` where its blocks may hold numbers that are not finite."""
        place = sequence.place
        if place is None:
            return
        under_way = sequence.last_step > self._collected
        kept = [lane.leave(sequence, doubtful=doubtful, under_way=under_way) for lane in self.lanes]
        if under_way:
            self._left[place] = (sequence.last_step, kept)
        else:
            self._free_slots.append(place[0])
        sequence.forget_computed()

    def collected(self, step: int, doubtful: Iterable[Place]) -> None:
        """A step is over: what was kept for it is free. `doubtful` are those whose rows of it were not good."""
        self._collected = step
        if not self._left:
            return
        for place in doubtful:
            if place in self._left:
                for lane, blocks in zip(self.lanes, self._left[place][1], strict=True):
                    lane.clear(blocks)
        for place in [place for place, (last_step, _) in self._left.items() if last_step <= step]:
            for lane, blocks in zip(self.lanes, self._left.pop(place)[1], strict=True):
                lane.pool.release(blocks)
            self._free_slots.append(place[0])

    def check(self, running: list[Sequence]) -> None:
        """Raise AssertionError unless slots, blocks, pools and indexes agree."""
        for number, lane in enumerate(self.lanes):
            lane.check(
                running,
                (
                    *(each[number] for _, each in self._left.values()),
                    *(each[number] for each in self.arriving.values()),
                ),
            )
        held = [each.slot for each in running] + [slot for slot, _ in self._left] + self._free_slots
        assert sorted(held) == list(range(len(self._generations))), "a slot is lost or held twice"

    def known(self, hashes: list[bytes]) -> list[list[int]]:
        """Of each lane the blocks of the longest beginning of a chain that all of them know from its start."""
        found = [lane.prefixes.find(hashes) for lane in self.lanes]
        count = min(map(len, found))
        return [blocks[:count] for blocks in found]

    def _find_prefix(self, sequence: Sequence) -> tuple[int, list[list[int]]]:
        """How many blocks of its beginning are computed, and of each lane the last of them, which are to be held.

        At least one token is left to compute, for something must be drawn.
        """
        if not self.prefix_cache or not sequence.reads_prefix:
            return 0, [[] for _ in self.lanes]
        hashes = sequence.chain((sequence.num_tokens - 1) // self.block_size, self.block_size)
        count, blocks = self.lanes[0].prefixes.hit(hashes)
        if len(self.lanes) == 1:
            return count, [blocks]
        count, seen = self.lanes[1].prefixes.hit(hashes[:count])
        return count, [blocks[:count], seen]
