"""Copies of blocks beside steps, in any order that their streams leave open: every step finds what it should."""

import random
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.block_machine import BLOCKS, CPU, LOCAL, ROWS, SIZE, Machine, ManyStreams, plan, storage

from polyfleet.engine.executor import DeviceTimeout
from polyfleet.executors.blocks import copies as block_copies
from polyfleet.executors.blocks.copies import BlockCopies
from polyfleet.executors.blocks.host_rows import HostRows
from polyfleet.executors.blocks.streams import HostStreams, OneStream, streams_of
from polyfleet.kernels.cached import BYTES, CODES

KINDS = ["step", "store", "load", "take", "take_locked", "begin_take", "end_takes", "export", "begin"]
OPERATIONS = st.tuples(st.sampled_from(KINDS), st.integers(0, 10**6))


def arrived_as(arrived: Callable[[], Any], by_token: np.ndarray) -> None:
    """What blocks held when it was begun, whatever was written to them since."""
    for each in arrived():
        assert np.array_equal(each, np.broadcast_to(by_token[None, :, None, None], each.shape))


@settings(max_examples=60, deadline=None)
@given(st.lists(OPERATIONS, min_size=1, max_size=30), st.integers(0, 10**6))
def test_every_reader_finds_what_was_written_last(operations: list[tuple[str, int]], seed: int) -> None:
    """An import may be begun, written and ended with anything between that does not touch its blocks."""
    machine, begun = Machine(seed), list[Any]()
    for kind, number in operations:
        draw = random.Random(number)
        count = draw.randint(1, 3)
        blocks, rows = draw.sample(machine.free, count), draw.sample(range(ROWS), count)
        if kind == "step":
            machine.step(*draw.sample(machine.free, 2))
        elif kind == "begin_take" and len(machine.free) - count >= 3:
            machine.begin_take(blocks)
        elif kind in ("begin_take", "end_takes"):
            machine.end_takes()
        elif kind == "load":
            machine.load(rows, blocks)
        elif kind == "take":
            machine.take(blocks, locked=False)[:] = -1.0  # what they lie in is written again
        elif kind == "take_locked":
            machine.take(blocks, locked=True)
        else:
            for block in blocks:
                machine.settle(block)
            if kind == "store":
                machine.rows.store(blocks, rows)
                for row, block in zip(rows, blocks, strict=True):
                    machine.kept[row] = machine.blocks[block]
            else:
                by_token = np.repeat([machine.blocks[block] for block in blocks], SIZE)
                begun.append((machine.copies.begin_export(blocks, ()), by_token))
                if kind == "export":
                    arrived_as(*begun.pop())
    machine.end_takes()
    for each in begun:
        arrived_as(*each)
    for row, expected in enumerate(machine.kept):
        assert all(np.array_equal(each, np.full_like(each, expected)) for each in machine.rows.read(row))
    machine.streams.finish()
    assert not machine.wrong
    for block, expected in enumerate(machine.blocks):
        assert all(bool((cache[:, block] == expected).all()) for cache in machine.storage.caches)


def test_many_pieces_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyfleet.executors.blocks.host_rows.PIECE_BYTES", 1)  # a block each
    machine = Machine(3)
    for block in range(BLOCKS):
        machine.step((block + 1) % BLOCKS, block)
    machine.settle(0)
    machine.rows.store(range(5), range(5))
    machine.rows.load([4, 3, 2, 1, 0], range(5))
    machine.streams.finish()
    assert [float(machine.storage.caches[0][0, block, 0, 0, 0]) for block in range(5)] == [5.0, 4.0, 3.0, 2.0, 1.0]


def test_a_step_waits_for_its_own_blocks_alone() -> None:
    machine = Machine(0)
    machine.copies.take([2], [np.ones(shape, np.float32) for shape in machine.storage.shapes(1, 0)], ())
    machine.streams.finish()
    machine.streams.paused = True
    machine.copies.take([4], [np.ones(shape, np.float32) for shape in machine.storage.shapes(1, 0)], ())
    for step, waits in ((plan([0, 2, 5]), 0), (plan([0, 4, 5]), 1), (plan([0], cleared=[4]), 2)):
        machine.copies.before_step(step, step.block_tables.shape[1])
        assert machine.streams.steps.waits == waits


@pytest.mark.parametrize("seed", range(12))
def test_of_an_import_that_fails_nothing_is_written_later(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(seed)
    importing, do, asked = machine.copies.begin_take([2], ()), machine.streams.do, list[Callable[[], None]]()
    caches = [np.full(shape, -1.0, np.float32) for shape in machine.storage.shapes(1, 0)]

    def too_much(stream: Any, work: Callable[[], None]) -> None:
        do(stream, work)
        asked.append(work)
        if len(asked) == 2:  # bringing, and some of the writing
            raise MemoryError("the device has no more")

    with monkeypatch.context() as patch:
        patch.setattr(machine.streams, "do", too_much)
        with pytest.raises(MemoryError):
            importing.write(caches)
    importing.end()
    machine.step(0, 2)
    machine.settle(2)
    machine.streams.finish()
    assert all(bool((cache[:, 2] == machine.blocks[2]).all()) for cache in machine.storage.caches)


def test_no_import_gives_work_while_any_executor_captures() -> None:
    capturing, other = Machine(0), Machine(1)
    importing = other.copies.begin_take([2], ())
    caches = [np.ones(shape, np.float32) for shape in other.storage.shapes(1, 0)]
    with capturing.copies.alone:
        thread = threading.Thread(target=importing.write, args=(caches,))
        thread.start()
        thread.join(0.02)
        assert not any(each.todo for each in other.streams.queues)
    thread.join()
    importing.end()
    other.streams.finish()
    assert all(bool((cache[:, 2] == 1.0).all()) for cache in other.storage.caches)


def test_blocks_of_two_pools_are_told_apart() -> None:
    held = storage(local_blocks=LOCAL)
    streams = ManyStreams(1)
    copies = BlockCopies(held, torch.float32, CPU, streams)
    caches = [np.full(shape, 7.0, np.float32) for shape in held.shapes(2, 1)]
    assert [each.shape for each in caches] == [(2, SIZE, 2, 4), (1, 2 * SIZE, 1, 6)]
    streams.paused = True
    copies.take([1, 4], caches, [2])
    for step, waits in ((plan([0, 2], [1]), 0), (plan([0, 3], [2]), 1)):  # as numbers 0, 2, 7; 0, 3, 8
        copies.before_step(step, 2)
        assert streams.steps.waits == waits
    streams.paused = False
    assert [each.tolist() for each in copies.export([1, 4], [2])] == [each.tolist() for each in caches]
    assert not held.caches[0][:, :2].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, BYTES, CODES])
def test_rows_hold_and_tell_what_executors_give(dtype: torch.dtype) -> None:
    computing = torch.float32 if dtype in (BYTES, CODES) else dtype
    held = storage(dtype)
    copies = BlockCopies(held, computing, CPU, HostStreams())
    rows = HostRows(copies, ROWS, pinned=False)
    for cache in held.caches:
        cache[:] = torch.randint(0, 100, cache.shape).to(dtype)
    before = [cache.clone() for cache in held.caches]
    rows.store([3, 0, 5], [1, 4, 2])
    for block, row in ((3, 1), (0, 4), (5, 2)):
        expected = copies.export([block], ())
        assert [each.tolist() for each in rows.read(row)] == [each.tolist() for each in expected]
        assert rows.there(row)
    rows.write(0, rows.read(4))
    rows.load([0, 1], [2, 1])
    for cache, old in zip(held.caches, before, strict=True):
        assert torch.equal(cache[:, [2, 1]], old[:, [0, 3]])


def test_other_shapes_are_refused_and_a_device_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Never(HostStreams):
        steps = SimpleNamespace(
            record_event=lambda: SimpleNamespace(query=lambda: False), wait_event=lambda event: None
        )

    copies = BlockCopies(storage(), torch.float32, CPU, Never())
    with pytest.raises(ValueError, match="are wanted, not"):
        copies.take([1], [np.zeros((2, SIZE, 4, 4), np.float32)], ())
    monkeypatch.setattr(block_copies, "COPY_SECONDS", 0.01)
    with pytest.raises(DeviceTimeout, match=r"did not finish a copy of blocks within 0\.01 s"):
        copies.export([0], ())


class Events:
    """A device module of torch's that has events and no streams."""

    class Event:
        recorded = 0

        def record(self) -> None:
            Events.Event.recorded += 1

        def query(self) -> bool:
            return True


def test_a_device_with_one_stream_does_all_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_device_module", lambda device: Events)
    streams = streams_of(torch.device("mps"), asynchronous=True)
    assert isinstance(streams, OneStream)
    assert isinstance(streams_of(CPU, asynchronous=False), HostStreams)
    held = storage()
    copies = BlockCopies(held, torch.float32, CPU, streams)
    caches = [np.full(shape, 3.0, np.float32) for shape in held.shapes(1, 0)]
    copies.take([2], caches, ())
    copies.before_step(plan([2]), 1)
    assert [each.tolist() for each in copies.export([2], ())] == [each.tolist() for each in caches]
    assert Events.Event.recorded == 3  # behind the steps so far, what was taken, and what was given
