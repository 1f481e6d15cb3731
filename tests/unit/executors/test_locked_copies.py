"""Blocks from page-locked memory: read where they lie, which is kept until then, and copied from any other."""

import weakref

import numpy as np
import pytest
from tests.support.block_machine import Machine, joined, plan

from polyfleet.executors.blocks import copies as block_copies


def test_page_locked_memory_is_read_where_it_is_and_kept_until_then() -> None:
    machine = Machine(5)
    machine.streams.paused = True
    memory = machine.take([2], locked=True)
    memory[:] = 4.0  # before the device comes to it: only so it shows that nothing was copied
    kept = weakref.ref(memory)
    del memory
    assert kept() is not None
    machine.streams.paused = False
    machine.streams.finish()
    assert all(bool((cache[:, 2] == 4.0).all()) for cache in machine.storage.caches)
    machine.copies.before_step(plan([0]), 1)
    assert kept() is None


def test_memory_that_is_not_one_piece_or_may_not_be_written_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_copies, "is_locked", lambda room, device: True)
    machine = Machine(5)
    machine.streams.paused = True
    apart = [np.full(shape, 3.0, np.float32) for shape in machine.storage.shapes(1, 0)]
    sealed, memory = joined(machine.storage.shapes(1, 0), 3.0)
    sealed.memory = sealed.memory.toreadonly()
    for block, caches in enumerate((apart, sealed)):
        machine.copies.take([block], caches, ())
    for each in (*apart, memory):
        each[:] = 4.0
    machine.streams.paused = False
    machine.streams.finish()
    assert all(bool((cache[:, :2] == 3.0).all()) for cache in machine.storage.caches)
