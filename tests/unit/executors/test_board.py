"""The board that ranks share: plans come across as they were, tables by their changes, none before all have room."""

import os
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from polyfleet.engine.executor import Capacity
from polyfleet.engine.step.plan import Need, StepPlan, lay_out
from polyfleet.executors.ranks.board import SLOTS, Board, Plans, pack, room_for
from polyfleet.sampling.draw import PARAMETERS

CAPACITY = Capacity(num_blocks=9, block_size=4, max_sequences=3, max_blocks=5, step_tokens=8)


def plan(tables: list[list[int]], changed: list[int], token_ids: list[int], cleared: list[int]) -> StepPlan:
    """Of two sequences, the second of which has all rows but one."""
    rows = len(token_ids)
    parts = (
        *(token_ids, list(range(rows)), [2, 0], [0, 1, rows], [4, rows], [0, rows - 1], [2, 0], [4, rows]),
        *([1], [1], cleared),
    )
    slots = np.array(changed, dtype=np.int32)
    sampling = np.zeros(3, dtype=PARAMETERS)
    return lay_out(parts, Need.RANDOM | Need.POOLING, np.array(tables, dtype=np.int32), slots, sampling, ())


FIRST = plan([[1, 2, 0, 0, 0], [0] * 5, [3, 0, 0, 0, 0]], [0, 2], [7, -3, 11, 12], [5, 6])
SECOND = plan([[1, 2, 4, 0, 0], [0] * 5, [3, 0, 0, 0, 0]], [0], [8, 9], [])


def test_adapters_of_the_slots_that_run() -> None:
    """A slot keeps its own from plan to plan; a plan that needs none brings none."""
    adapted = plan([[0] * 5] * 3, [], [7, 8, 9], [])
    adapted.needs, adapted.adapters = adapted.needs | Need.ADAPTERS, np.array([4, 9, -1], dtype=np.int32)
    plans = Plans(3, 5)
    found = plans.unpack(pack(adapted))
    assert found.adapters.tolist() == [4, -1, -1], "slots 2 and 0 run"
    assert (found.needs, found.cleared_blocks.tolist()) == (adapted.needs, [])
    assert found.numbers.tolist() == adapted.numbers.tolist()
    assert not plans.unpack(pack(SECOND)).needs & Need.ADAPTERS


@pytest.fixture
def boards() -> Iterator[tuple[Board, Board]]:
    """Rank 0's and rank 1's."""
    descriptor = os.memfd_create("board")
    yield Board(descriptor, 2, room_for(CAPACITY)), Board(descriptor, 2, room_for(CAPACITY))
    os.close(descriptor)


def never() -> None:
    raise TimeoutError


def test_plans_come_across(boards: tuple[Board, Board]) -> None:
    mine, theirs = boards
    plans = Plans(CAPACITY.max_sequences, CAPACITY.max_blocks)
    for each in (FIRST, SECOND):
        mine.post(each, never)
        found = plans.unpack(theirs.take(1))
        for name in ("numbers", "token_ids", "positions", "slots", "row_starts", "lengths", "draw_rows", "draw_slots"):
            assert getattr(found, name).tolist() == getattr(each, name).tolist(), name
        assert found.cleared_blocks.tolist() == each.cleared_blocks.tolist()
        assert (found.needs, found.pooled.tolist(), found.pool_kinds.tolist()) == (each.needs, [1], [1])
        assert found.changed.tolist() == each.changed.tolist()
        assert found.block_tables.tolist() == each.block_tables.tolist(), "what did not change is kept"


def test_there_is_room_for_a_draw_behind_every_draft() -> None:
    rows = list(range(8))
    parts = ([7] * 8, rows, [2, 0, 1], [0, 3, 6, 8], [3, 3, 2], rows, [2, 2, 2, 0, 0, 0, 1, 1], rows, (), (), range(9))
    slots, tables = np.arange(3, dtype=np.int32), np.zeros((3, 5), dtype=np.int32)
    largest = lay_out(parts, Need.RANDOM, tables, slots, np.zeros(3, dtype=PARAMETERS), ())
    assert room_for(CAPACITY) < len(pack(largest)) <= room_for(replace(CAPACITY, drafts=4))


def test_a_plan_waits_until_there_is_a_place_for_it(boards: tuple[Board, Board]) -> None:
    mine, theirs = boards
    for _ in range(SLOTS):
        mine.post(SECOND, never)
    with pytest.raises(TimeoutError):
        mine.post(FIRST, never)
    theirs.take(1)
    mine.post(FIRST, never)
    assert [len(theirs.take(1)) for _ in range(SLOTS)] == [len(pack(SECOND))] * (SLOTS - 1) + [len(pack(FIRST))]


def test_there_is_room_for_the_largest_plan() -> None:
    rows, slots = CAPACITY.step_tokens, CAPACITY.max_sequences
    largest = plan([[1] * 5] * 3, [0, 1, 2], [1] * rows, list(range(CAPACITY.num_blocks)))
    extra = 5 * (slots - 2)  # of a third sequence that draws
    assert len(pack(replace(largest))) + extra <= room_for(CAPACITY)


def test_last_words_are_cut_to_their_place(boards: tuple[Board, Board]) -> None:
    mine, theirs = boards
    theirs.say(1, "no memory " * 100)
    assert mine.words(1).startswith("no memory no memory")
    assert mine.words(0) == ""
