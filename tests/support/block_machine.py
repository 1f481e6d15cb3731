"""A device that copies blocks beside its steps, in any order that its streams leave open, and what it should hold."""

import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from polyfleet.engine.executor import BlockImport
from polyfleet.executors.blocks import copies as block_copies
from polyfleet.executors.blocks.copies import BlockCopies
from polyfleet.executors.blocks.host_rows import HostRows
from polyfleet.graph.kernel_graph import PerToken
from polyfleet.kvcache.portable import Joined
from polyfleet.kvcache.storage import KvStorage

CPU = torch.device("cpu")
CACHES = (PerToken(2, 4), PerToken(1, 6, latent=True))  # heads, width
BLOCKS, LOCAL, SIZE, ROWS = 6, 3, 4, 5


class Place:
    """A mark; the device has come there once it is `done`."""

    def __init__(self, streams: "ManyStreams") -> None:
        self.done, self._streams = False, streams

    def query(self) -> bool:
        """Whoever asks waits, so the device goes on by a piece of work."""
        if not self._streams.paused:
            self._streams.go_on()
        return self.done


class Queue:
    """What one stream was given and has not done."""

    def __init__(self, streams: "ManyStreams") -> None:
        self.todo: deque[Callable[[], None] | Place] = deque()  # a Place that is not its own is waited for
        self._streams = streams
        self._own: set[Place] = set()
        self.waits = 0  # so far

    def record_event(self) -> Place:
        place = Place(self._streams)
        self._own.add(place)
        self.todo.append(place)
        return place

    def wait_event(self, event: Place) -> None:
        self.waits += 1
        self.todo.append(event)

    @property
    def ready(self) -> bool:
        """Whether it could do its next piece of work."""
        return bool(self.todo) and (not isinstance(first := self.todo[0], Place) or first.done or first in self._own)

    def step(self) -> None:
        """Do it."""
        first = self.todo.popleft()
        if isinstance(first, Place):
            first.done = True
        else:
            first()


class ManyStreams:
    """A device that does what it is asked as late, and in as odd an order, as its streams leave open."""

    shared = True

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.paused = False
        self.queues: list[Queue] = []
        self.steps = self.new()

    def new(self) -> Queue:
        self.queues.append(Queue(self))
        return self.queues[-1]

    def do(self, stream: Queue, work: Callable[[], None]) -> None:
        stream.todo.append(work)
        for _ in range(0 if self.paused else self._random.choice((0, 0, 1, 3))):
            self.go_on()

    def go_on(self) -> bool:
        """A piece of work of any stream that can."""
        ready = [each for each in self.queues if each.ready]
        if ready:
            self._random.choice(ready).step()
        return bool(ready)

    def finish(self) -> None:
        """All of it; what is left then waits for itself."""
        while self.go_on():
            pass
        assert not any(each.todo for each in self.queues), "streams wait for each other"


def storage(dtype: torch.dtype = torch.float32, local_blocks: int = 0) -> KvStorage:
    local = frozenset({0}) if local_blocks else frozenset[int]()
    return KvStorage.allocate(CACHES, BLOCKS, SIZE, dtype, CPU, local=local, local_blocks=local_blocks)


def plan(blocks: Sequence[int], local: Sequence[int] = (), cleared: Sequence[int] = ()) -> Any:
    """Of a step whose only sequence has these blocks."""
    tables = np.array([[-1] * (len(blocks) + len(local)), [*blocks, *local]], dtype=np.int32)
    return SimpleNamespace(block_tables=tables, slots=np.array([1]), cleared_blocks=np.array(cleared, dtype=np.int32))


class Machine:
    """Blocks and rows of a device, and beside them what they should hold: a number each."""

    def __init__(self, seed: int, dtype: torch.dtype = torch.float32) -> None:
        self.streams = ManyStreams(seed)
        self.storage = storage(dtype)
        self.copies = BlockCopies(self.storage, dtype, CPU, self.streams)
        self.rows = HostRows(self.copies, ROWS, pinned=False)
        self.blocks, self.kept = [0.0] * BLOCKS, [0.0] * ROWS
        for row in range(ROWS):
            self.rows.write(row, [np.zeros(shape, np.float32) for shape in self.storage.shapes(1, 0)])
        self.free = list(range(BLOCKS))  # blocks that no import has
        self._imports: list[tuple[BlockImport, Sequence[int], float]] = []
        self.wrong: list[tuple[int, float, float]] = []
        self.serial = 0.0

    def step(self, read: int, written: int) -> None:
        """A step that reads one block and writes another."""
        self.serial += 1
        expected, number = self.blocks[read], self.serial
        self.copies.before_step(plan([read, written]), 2)

        def work() -> None:
            found = {number for cache in self.storage.caches for number in cache[:, read].flatten().tolist()}
            self.wrong += [(read, expected, each) for each in found if each != expected]
            for cache in self.storage.caches:
                cache[:, written] = number

        self.streams.do(self.streams.steps, work)
        self.blocks[written] = number

    def take(self, blocks: Sequence[int], *, locked: bool) -> np.ndarray:
        """Into blocks, from memory that is page-locked or not; it is given back."""
        self.serial += 1
        caches, memory = joined(self.storage.shapes(len(blocks), 0), self.serial)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(block_copies, "is_locked", lambda room, device: locked)
            self.copies.take(blocks, caches, ())
        for block in blocks:
            self.blocks[block] = self.serial
        return memory

    def load(self, rows: Sequence[int], blocks: Sequence[int]) -> None:
        """Put back into blocks what rows hold."""
        self.rows.load(rows, blocks)
        for row, block in zip(rows, blocks, strict=True):
            self.blocks[block] = self.kept[row]

    def begin_take(self, blocks: Sequence[int]) -> None:
        """Import into blocks, written by another thread, that are not `free` until `end_takes`."""
        self.serial += 1
        caches, _ = joined(self.storage.shapes(len(blocks), 0), self.serial)
        importing = self.copies.begin_take(blocks, ())
        self.free = [each for each in self.free if each not in blocks]
        self._imports.append((importing, blocks, self.serial))
        thread = threading.Thread(target=importing.write, args=(caches,))
        thread.start()
        thread.join()

    def end_takes(self) -> None:
        """Of all imports."""
        for importing, blocks, number in self._imports:
            importing.end()
            self.free.extend(blocks)
            for block in blocks:
                self.blocks[block] = number
        self._imports.clear()

    def settle(self, block: int) -> None:
        """Steps that write a block are over before it is copied."""
        over = self.streams.steps.record_event()
        while not over.done:
            assert self.streams.go_on()


def joined(shapes: Sequence[tuple[int, ...]], number: float) -> tuple[Joined, np.ndarray]:
    """Arrays full of a number that lie one behind the other, and the memory in which they do."""
    memory = np.full(sum(int(np.prod(each)) for each in shapes), number, np.float32)
    return Joined.of(memory.data.cast("B"), shapes, memory.dtype), memory
