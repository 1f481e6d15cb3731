"""Blocks on their ways between the device and the host, beside steps: each waits for what touches the same blocks."""

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfleet.engine.executor import BlockImport
from polyfleet.engine.step.plan import StepPlan
from polyfleet.executors.blocks.host_memory import is_locked
from polyfleet.executors.blocks.moves import BlockMoves
from polyfleet.executors.blocks.streams import Mark, Stream, Streams, Work, wait_for
from polyfleet.kernels.cached import arriving, leaving
from polyfleet.kernels.step import can_pin, upload
from polyfleet.kvcache.portable import Joined
from polyfleet.kvcache.storage import KvStorage

COPY_SECONDS = 300.0  # that a copy may take before the device counts as hung


class BlockCopies:
    """Copies of a KvStorage's blocks, from and to the host. One thread's, but for what `BlockImport.write` does.

    What touches a block goes on behind the copies of it so far: a step behind those of its own sequences' blocks, a
    copy into blocks behind all steps so far too. A copy out of blocks waits for no step, so none under way may write
    them.
    """

    # Held by whoever must not be disturbed at giving the device work: a draft model's executor captures, too.
    alone: ClassVar = threading.Lock()

    def __init__(
        self,
        storage: KvStorage,
        dtype: torch.dtype,
        device: torch.device,
        streams: Streams,
        moves: BlockMoves | None = None,
    ) -> None:
        """`dtype`: that is computed in; `moves`: the storage's own, unless there are faster ones."""
        self.storage, self.dtype, self.device, self.streams = storage, dtype, device, streams
        self.moves = moves or storage
        self._shapes = lru_cache(64)(storage.shapes)  # which threads may share
        self._read: list[tuple[Mark, Tensor]] = []  # host memory that the device has to read, until that mark
        self._out, self._into = streams.new(), streams.new()
        self._marks: dict[int, Mark] = {}  # by block: behind the last copy of it
        self._first = storage.first_local  # blocks of the second pool are told by numbers from there on

    def before_step(self, plan: StepPlan, columns: int) -> None:
        """What is launched from now on finds all copies done of the blocks that it touches.

        Behind so many columns of its tables come blocks of the second pool.
        """
        self._let_go()
        self._marks = {block: mark for block, mark in self._marks.items() if not mark.query()}
        if self._marks:
            tables = plan.block_tables[plan.slots]
            parts = tables[:, :columns], tables[:, columns:] + self._first, plan.cleared_blocks
            self.wait(self.streams.steps, np.unique(np.concatenate([each.reshape(-1) for each in parts])).tolist())

    def wait(self, stream: Stream, blocks: Iterable[int]) -> None:
        """What a stream is given from now on finds all copies of these blocks done."""
        for mark in self._marks_of(blocks):
            stream.wait_event(mark)

    def _marks_of(self, blocks: Iterable[int]) -> list[Mark]:
        """Behind the last copies of these blocks, each once."""
        found = (self._marks.get(block) for block in blocks)
        return list({id(each): each for each in found if each is not None}.values())

    def mark(self, stream: Stream, blocks: Iterable[int]) -> Mark:
        """Copies of these blocks are done once a stream has done what it was given so far."""
        mark: Mark = stream.record_event()
        self._marks.update(dict.fromkeys(blocks, mark))
        return mark

    def wait_for_steps(self, stream: Stream) -> None:
        """What a stream is given from now on finds all steps so far done."""
        stream.wait_event(self.streams.steps.record_event())

    def export(self, blocks: Sequence[int], local: Sequence[int]) -> tuple[NDArray[Any], ...]:
        """See `Executor.export_blocks`."""
        return self.begin_export(blocks, local)()

    def begin_export(self, blocks: Sequence[int], local: Sequence[int]) -> Callable[[], tuple[NDArray[Any], ...]]:
        """`export` but for the waiting, which any thread may do by calling what this returns."""
        if not self.storage.caches:
            return tuple
        found: list[Tensor] = []

        def work() -> None:
            held = self.moves.read_flat(*self._uploaded(blocks, local))
            found.append(leaving(held, self.dtype).to("cpu", non_blocking=True))

        touched = self._numbers(blocks, local)
        self.wait(self._out, touched)
        self.streams.do(self._out, work)
        mark, shapes = self.mark(self._out, touched), self._shapes(len(blocks), len(local))

        def arrived() -> tuple[NDArray[Any], ...]:
            wait_for(mark, COPY_SECONDS, "a copy of blocks")
            flat = found[0].numpy()
            return Joined.of(flat.data.cast("B"), shapes, flat.dtype)

        return arrived

    def take(self, blocks: Sequence[int], caches: Sequence[NDArray[Any]], local: Sequence[int]) -> None:
        """See `Executor.import_blocks`. What `caches` lie in may be written again at once, unless it is page-locked and
        they are Joined in it: then the device reads it where it is."""
        taking = self.begin_take(blocks, local)
        taking.write(caches)
        taking.end()
        self._let_go()

    def begin_take(self, blocks: Sequence[int], local: Sequence[int]) -> BlockImport:
        """`take`, all of whose work for the device another thread may do. Nobody else touches the blocks meanwhile."""
        touched = self._numbers(blocks, local)
        return BlockImport(partial(self._write, blocks, local, touched, self._marks_of(touched)))

    def _write(
        self,
        blocks: Sequence[int],
        local: Sequence[int],
        touched: Sequence[int],
        behind: Sequence[Mark],
        caches: Sequence[NDArray[Any]],
    ) -> Work:
        shapes = self._shapes(len(blocks), len(local))
        if [each.shape for each in caches] != shapes:
            raise ValueError(f"caches of {shapes} are wanted, not {[each.shape for each in caches]}")
        room = self._room(caches)
        held: list[Tensor] = []

        def bring() -> None:
            given = room.to(self.device, non_blocking=True)
            held.append(arriving(given, self.storage.caches[0], self.dtype))

        def write() -> None:
            numbers, of_local = self._uploaded(blocks, local)
            self.moves.write_flat(numbers, held[0], of_local)

        try:
            with self.alone:
                self.streams.do(self._into, bring)
                self.wait_for_steps(self._into)
                for mark in behind:
                    self._into.wait_event(mark)
                self.streams.do(self._into, write)
                return partial(self._took, self._into.record_event(), touched, room)
        except Exception:  # no mark will tell of what the device was given until then
            wait_for(self._into.record_event(), COPY_SECONDS, "a copy of blocks")
            raise

    def _took(self, mark: Mark, touched: Sequence[int], room: Tensor) -> None:
        self._marks.update(dict.fromkeys(touched, mark))
        self._read.append((mark, room))

    def _room(self, caches: Sequence[NDArray[Any]]) -> Tensor:
        """All bytes, one behind the other, where the device can read them beside steps: where they lie, or copied."""
        if isinstance(caches, Joined) and not caches.memory.readonly:
            room = torch.frombuffer(caches.memory, dtype=torch.uint8)
            if is_locked(room, self.device):
                return room
        room = torch.empty(sum(each.nbytes for each in caches), dtype=torch.uint8, pin_memory=can_pin(self.device.type))
        np.concatenate([each.reshape(-1) for each in caches], out=room.numpy().view(caches[0].dtype))
        return room

    def _let_go(self) -> None:
        """Of host memory that the device has read."""
        self._read = [each for each in self._read if not each[0].query()]

    def _numbers(self, blocks: Sequence[int], local: Sequence[int]) -> list[int]:
        return [*blocks, *(self._first + block for block in local)]

    def _uploaded(self, blocks: Sequence[int], local: Sequence[int]) -> tuple[Tensor, Tensor]:
        numbers = upload(np.array([*blocks, *local], dtype=np.int64), self.device)
        return numbers[: len(blocks)], numbers[len(blocks) :]
