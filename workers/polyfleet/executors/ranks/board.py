"""Board: the memory that a group's ranks share. Rank 0 posts plans on it; each rank shows on it that it lives."""

import mmap
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyfleet.engine.executor import Capacity
from polyfleet.engine.step.plan import NO_ADAPTER, NOTHING, Need, StepPlan
from polyfleet.sampling.arrays import Int32s
from polyfleet.sampling.draw import PARAMETERS

SLOTS = 4  # plans that may be posted and not yet taken
WORDS_BYTES = 512  # of a rank's last words
POLL_SECONDS = 2e-4
_NUMBERS = 11  # arrays of StepPlan.numbers
_PARTS = _NUMBERS + 1  # and the adapters of its sequences, where some have one
_HEAD = _PARTS + 3  # their lengths, the needs, how many slots changed, and the columns of their tables


class Board:
    """One mapping: of each rank its beat, how many plans it took, its last words; then SLOTS of plans.

    `room` is the most int32s of one plan. The owner makes it and resizes it once, before anything is posted.
    """

    def __init__(self, descriptor: int, size: int, room: int) -> None:
        bytes_each = 16 + WORDS_BYTES
        total = size * bytes_each + SLOTS * room * 4
        if os.fstat(descriptor).st_size < total:
            os.ftruncate(descriptor, total)
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, total)
        self.beats = np.frombuffer(self._map, dtype=np.int64, count=size)
        self.taken = np.frombuffer(self._map, dtype=np.int64, count=size, offset=size * 8)
        self._words = np.frombuffer(self._map, dtype=np.uint8, count=size * WORDS_BYTES, offset=size * 16)
        self._plans = np.frombuffer(self._map, dtype=np.int32, count=SLOTS * room, offset=size * bytes_each)
        self._plans = self._plans.reshape(SLOTS, room)
        self._posted = 0

    @classmethod
    def create(cls, size: int) -> "Board":
        """A new one without room for plans, for `size` ranks."""
        return cls(os.memfd_create("polyfleet-board"), size, 0)

    def say(self, rank: int, words: str) -> None:
        """Leave a rank's last words."""
        said = words.encode()[:WORDS_BYTES]
        self._words[rank * WORDS_BYTES : rank * WORDS_BYTES + len(said)] = np.frombuffer(said, dtype=np.uint8)

    def words(self, rank: int) -> str:
        """A rank's last words; empty: it left none."""
        said = self._words[rank * WORDS_BYTES : (rank + 1) * WORDS_BYTES].tobytes()
        return said.partition(b"\0")[0].decode(errors="replace")

    def post(self, plan: StepPlan, check: Callable[[], None]) -> None:
        """Copy a plan to the next slot, once every rank but the first has taken what stood there.

        `check` is called while one has not, and may raise.
        """
        while len(self.taken) > 1 and self._posted - int(self.taken[1:].min()) >= SLOTS:
            check()
            time.sleep(POLL_SECONDS)
        packed = pack(plan)
        self._plans[self._posted % SLOTS, : len(packed)] = packed
        self._posted += 1

    def take(self, rank: int) -> Int32s:
        """A copy of the next plan, which has been posted."""
        slot = self._plans[int(self.taken[rank]) % SLOTS]
        packed: Int32s = slot[: _length(slot)].copy()
        self.taken[rank] += 1
        return packed


def room_for(capacity: Capacity) -> int:
    """int32s of the largest plan: every slot's table has changed, and every block is to be cleared."""
    draws = 3 * capacity.max_draws
    numbers = (
        2 * capacity.step_tokens + 7 * capacity.max_sequences + draws + 2 + capacity.num_blocks + capacity.local_blocks
    )
    return _HEAD + numbers + capacity.max_sequences * (1 + capacity.table_width)


def pack(plan: StepPlan) -> Int32s:
    """What ranks need of a plan that draw nothing themselves."""
    parts = (
        *(plan.token_ids, plan.positions, plan.slots, plan.row_starts, plan.lengths, plan.draw_rows),
        *(plan.draw_slots, plan.draw_positions, plan.pooled, plan.pool_kinds, plan.cleared_blocks),
        plan.adapters[plan.slots] if plan.needs & Need.ADAPTERS else NOTHING,
    )
    tables = plan.block_tables[plan.changed]
    head = np.array([*map(len, parts), int(plan.needs), *tables.shape], dtype=np.int32)
    packed: Int32s = np.concatenate((head, *parts, plan.changed, tables.reshape(-1)))
    return packed


def _length(packed: NDArray[np.int32]) -> int:
    lengths, (changed, columns) = packed[:_PARTS], packed[_PARTS + 1 : _HEAD].tolist()
    return int(_HEAD + lengths.sum() + changed * (1 + columns))


class Plans:
    """Makes plans of what was packed; block tables persist, as with the Assembler that filled them."""

    def __init__(self, max_sequences: int, table_width: int) -> None:
        self._tables = np.zeros((max_sequences, table_width), dtype=np.int32)
        self._sampling = np.zeros(max_sequences, dtype=PARAMETERS)
        self._adapters = np.full(max_sequences, NO_ADAPTER, dtype=np.int32)

    def unpack(self, packed: Int32s) -> StepPlan:
        """The plan, without the parameters of its draws."""
        ends = (_HEAD + packed[:_PARTS].cumsum()).tolist()
        views: list[Any] = [packed[first:end] for first, end in zip([_HEAD, *ends], ends, strict=False)]
        changed, columns = packed[_PARTS + 1 : _HEAD].tolist()
        slots = packed[ends[-1] : ends[-1] + changed] if changed else NOTHING
        self._tables[slots] = packed[ends[-1] + changed :][: changed * columns].reshape(changed, columns)
        *numbers, adapters = views
        ids, positions, mine, starts, lengths, draw_rows, draw_slots, draw_positions, pooled, last, cleared = numbers
        if len(adapters):
            self._adapters[mine] = adapters
        whole = packed[_HEAD : ends[_NUMBERS - 1]]
        return StepPlan(
            *(whole, ids, positions, mine, starts, lengths, draw_rows, draw_slots, draw_positions),
            *(pooled, last, cleared, Need(int(packed[_PARTS])), self._tables, slots, self._sampling, ()),
            adapters=self._adapters,
        )
