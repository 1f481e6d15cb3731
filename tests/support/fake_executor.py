"""An executor without a model, for tests: its tokens are a function of what stands in the KV blocks.

Every token it is given is written through the block table into a store of its own, and everything it draws from is
read back through the block table. So a block that is shared wrongly, freed too early or not computed shows as a wrong
token, or at once as an AssertionError. It keeps nothing of a plan but what the plan says has changed, and scribbles
over the plan's arrays when it has launched it. It computes in the order of launches, as a device does.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.support.masking import dense

from polyfleet.engine.executor import Capacity, Fault, Footprint, Pending, StepOutput, StepTooLarge
from polyfleet.engine.step.plan import Need, StepPlan
from polyfleet.sampling.arrays import Bools
from polyfleet.sampling.draw import Start
from polyfleet.sampling.masks import Masks
from polyfleet.wire.requests import Pooling, SequenceRequest

VOCABULARY = 97
HIDDEN = 3
SCRIBBLE = -(2**20)  # stands in every array of a plan that was launched


@dataclass(frozen=True, slots=True)
class Slice:
    """One sequence's share of a step."""

    slot: int
    token_ids: tuple[int, ...]  # as they were computed; the plan may have left one to be drawn
    start: int
    draws: int  # as many rows as draw: the last of them
    pooling: Pooling | None

    @property
    def draw(self) -> bool:
        """Whether it draws."""
        return self.draws > 0

    @property
    def length(self) -> int:
        """Positions behind this slice."""
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Batch:
    """What a step was asked for."""

    slices: tuple[Slice, ...]
    cleared: tuple[int, ...] = ()
    ahead: bool = False  # whether a token was still to be drawn when it was planned

    @property
    def num_tokens(self) -> int:
        """Rows of the forward pass."""
        return sum(len(each.token_ids) for each in self.slices)


@dataclass(slots=True)
class FakePending(Pending):
    """A step under way."""

    batch: Batch
    parameters: NDArray[Any]
    draw_positions: list[int]
    faults: NDArray[np.int8]
    needs: Need
    token_ids: list[int] = field(default_factory=list)
    drawn: bool = False


class FakeExecutor:
    """Deterministic. What is to go wrong once: `failure` is raised by `fails_in`, `faulty` slices come back so."""

    name = "fake"
    dtype = "float32"

    def __init__(self, depth: int = 1, horizon: int = 0, window: int = 0) -> None:
        """`horizon`: how many tokens it draws from; 0: all. `window`: how many a second pool must have, too."""
        self.depth = depth
        self._window, self._columns = window, 0
        self._horizon = horizon
        self.batches: list[Batch] = []
        self.failure: BaseException | None = None
        self.fails_in = "launch"  # or draw, collect
        self.fault = False  # whether the first slice of the next step is faulty
        self.most_rows = 10**9  # more are refused as too large
        self.memory_rows = 10**9  # more do not fit the memory
        self.masks: list[Masks | None] = []
        self.starts: list[Start] = []
        self._store: dict[tuple[int, int], tuple[int, int]] = {}  # (block, offset) -> (token id, faulty slot or -1)
        self._under_way: list[FakePending] = []
        self._last_token: dict[int, int] = {}

    def measure(self) -> Footprint:
        """Nothing is held."""
        return Footprint(0, 1)

    def allocate(self, capacity: Capacity) -> None:
        """Remember the sizes."""
        self.block_size = capacity.block_size
        self._num_blocks = capacity.num_blocks
        self._columns, self._local_blocks = capacity.max_blocks, capacity.local_blocks
        self._tables = np.full((capacity.max_sequences, capacity.table_width), -1, dtype=np.int32)

    def launch(self, plan: StepPlan) -> FakePending:
        """Write all tokens."""
        assert len(self._under_way) < self.depth, "more steps are under way than the executor's depth"
        assert all(each.drawn for each in self._under_way), "launched before the step before was drawn"
        if plan.num_rows > self.most_rows:
            raise StepTooLarge(f"{plan.num_rows} rows")
        self._raise("launch")
        if plan.num_rows > self.memory_rows:
            raise MemoryError
        self._tables[plan.changed] = plan.block_tables[plan.changed]
        for block in plan.cleared_blocks.tolist():
            for offset in range(self.block_size):
                self._store.pop((block, offset), None)
        self.starts += plan.starts
        pending = self._take(plan)
        plan.numbers[:] = SCRIBBLE
        plan.changed[:] = SCRIBBLE
        self._under_way.append(pending)
        return pending

    def draw(self, pending: Pending, masks: Masks | None = None) -> None:
        """Draw from what stands in the blocks."""
        assert isinstance(pending, FakePending)
        assert not pending.drawn
        self._raise("draw")
        self.masks.append(masks)
        drawing = [
            (number, each, each.length - left)
            for number, each in enumerate(pending.batch.slices)
            for left in reversed(range(each.draws))
        ]
        allowed = None if masks is None else dense(masks, len(drawing), VOCABULARY)
        for row, (number, each, length) in enumerate(drawing):
            content = self._content(each, length, number, pending)
            assert pending.draw_positions[row] == length, "the draw's position is not that behind the tokens"
            parameters = pending.parameters[row]
            token_id = next_token(content, int(parameters["seed"]), int(parameters["choice"]))
            while allowed is not None and not allowed[row][token_id]:
                token_id = (token_id + 1) % VOCABULARY
            self._last_token[each.slot] = token_id
            pending.token_ids.append(token_id)
        pending.drawn = True

    def collect(self, pending: Pending, timeout: float) -> StepOutput:
        """What was computed."""
        assert isinstance(pending, FakePending)
        assert self._under_way[0] is pending, "collected out of order"
        assert pending.drawn
        del self._under_way[0]
        self._raise("collect")
        pool = [(each.pooling, each.token_ids) for each in pending.batch.slices if each.pooling is not None]
        rows = [pooled(kind, ids) for kind, ids in pool]
        token_ids = np.array(pending.token_ids, dtype=np.int64)
        return StepOutput(token_ids, pending.faults, pooled=np.array(rows) if rows else None)

    def export_blocks(self, blocks: Sequence[int]) -> tuple[NDArray[Any], ...]:
        """Token ids as one cache [2, tokens, 1, 1]."""
        places = [(block, offset) for block in blocks for offset in range(self.block_size)]
        ids = np.array([self._store[place][0] for place in places], dtype=np.float32)
        return (np.stack((ids, ids)).reshape(2, -1, 1, 1),)

    def import_blocks(self, blocks: Sequence[int], caches: Sequence[NDArray[Any]]) -> None:
        """The reverse."""
        places = [(block, offset) for block in blocks for offset in range(self.block_size)]
        for place, token_id in zip(places, caches[0][0].flatten().tolist(), strict=True):
            self._store[place] = (int(token_id), -1)

    def implementations(self) -> Mapping[str, str]:
        """No op is computed."""
        return {"step": "fake"}

    def close(self) -> None:
        """Nothing is held."""

    def _raise(self, call: str) -> None:
        if self.failure is not None and self.fails_in == call:
            failure, self.failure = self.failure, None
            if self._under_way and call == "draw":
                self._under_way.pop()
            raise failure

    def _take(self, plan: StepPlan) -> FakePending:
        slices, faults = [], np.zeros(len(plan.slots), dtype=np.int8)
        ahead = bool((plan.token_ids < 0).any())
        draws, rows = Counter(plan.draw_sequences.tolist()), plan.row_starts.tolist()
        last = [row for number in sorted(draws) for row in range(rows[number + 1] - draws[number], rows[number + 1])]
        assert plan.draw_rows.tolist() == last, "draws are not behind each sequence's last rows"
        pools = dict(zip(plan.pooled.tolist(), plan.pool_kinds.tolist(), strict=True))
        for number, (slot, length) in enumerate(zip(plan.slots.tolist(), plan.lengths.tolist(), strict=True)):
            ids = plan.token_ids[rows[number] : rows[number + 1]].tolist()
            start = length - len(ids)
            assert plan.positions[rows[number] : rows[number + 1]].tolist() == list(range(start, length))
            ids = [each if each >= 0 else self._last_token[-1 - each] for each in ids]
            pooling = (Pooling.MEAN, Pooling.LAST, Pooling.CLS)[pools[number]] if number in pools else None
            slices.append(Slice(slot, tuple(ids), start, draws[number], pooling))
        self.batches.append(Batch(tuple(slices), tuple(plan.cleared_blocks.tolist()), ahead))
        for number, each in enumerate(slices):
            faulty = self.fault and number == 0
            for position, token_id in enumerate(each.token_ids, each.start):
                self._store[self._place(each, position)] = (token_id, each.slot if faulty else -1)
                if self._local_blocks:
                    self._store[self._local_place(each, position)] = (token_id, each.slot if faulty else -1)
            faults[number] = Fault.NOT_FINITE if faulty else Fault.NONE
        self.fault = False
        draws_of = plan.draws()
        positions = plan.draw_positions.tolist()
        return FakePending(self.batches[-1], draws_of.parameters, positions, faults, plan.needs)

    def _content(self, each: Slice, length: int, number: int, pending: FakePending) -> list[int]:
        """The tokens that the draw sees; whoever meets another's fault in a block of its own has not been cleared."""
        first = max(0, length - self._horizon) if self._horizon else 0
        entries = [self._store[self._place(each, position)] for position in range(first, length)]
        blocks = self._tables[each.slot, : -(-each.length // self.block_size)].tolist()
        if self._local_blocks:
            places = range(max(0, length - self._window), length)
            seen = [self._store[self._local_place(each, position)] for position in places]
            assert seen == entries[len(entries) - len(seen) :], "the window's blocks hold something else"
            blocks += {self._local_place(each, position)[0] for position in places}
        met = {self._store.get((block, at), (0, -1))[1] for block in blocks for at in range(self.block_size)} - {-1}
        assert met <= {each.slot}, "a block was given out with what is not finite in it"
        if met:
            pending.faults[number] = Fault.NOT_FINITE
        return [token_id for token_id, _ in entries]

    def _place(self, each: Slice, position: int) -> tuple[int, int]:
        block = int(self._tables[each.slot, position // self.block_size])
        assert 0 <= block < self._num_blocks, "a block table is too short, or its change was not told"
        return block, position % self.block_size

    def _local_place(self, each: Slice, position: int) -> tuple[int, int]:
        """In the second pool, whose blocks count on from the first's."""
        block = int(self._tables[each.slot, self._columns + position // self.block_size])
        assert 0 <= block < self._local_blocks, "a block table is too short, or its change was not told"
        return self._num_blocks + block, position % self.block_size


def next_token(token_ids: Sequence[int], seed: int = 0, choice: int = 0) -> int:
    """The token behind `token_ids`."""
    digest = blake2b(repr((list(token_ids), seed, choice)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % VOCABULARY


def pooled(kind: Pooling, token_ids: Sequence[int]) -> tuple[float, ...]:
    """What a slice pools to: powers of the ids, summed or of the last one."""
    rows = [tuple(float(each**power) for power in range(1, HIDDEN + 1)) for each in token_ids]
    return rows[-1] if kind is Pooling.LAST else tuple(map(sum, zip(*rows, strict=True)))


def expected_tokens(
    request: SequenceRequest,
    context_length: int,
    end_token_ids: frozenset[int] = frozenset(),
    allowed: Callable[[Sequence[int]], Bools] | None = None,
) -> tuple[list[int], str]:
    """The tokens that follow `generated_ids` and the finish reason, computed one by one without an engine."""
    generated = list(request.generated_ids)
    while True:
        token_id = next_token([*request.prompt_ids, *generated], request.sampling.seed, request.choice)
        while allowed is not None and not allowed(generated)[token_id]:
            token_id = (token_id + 1) % VOCABULARY
        if token_id in request.stop_token_ids or (not request.ignore_eos and token_id in end_token_ids):
            return generated[len(request.generated_ids) :], "stop"
        generated.append(token_id)
        if len(generated) == request.max_tokens or len(request.prompt_ids) + len(generated) == context_length:
            return generated[len(request.generated_ids) :], "length"
