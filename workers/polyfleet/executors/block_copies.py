"""Blocks on their ways between the device and the host, beside steps: each waits for what touches the same blocks."""

import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfleet.engine.executor import DeviceTimeout
from polyfleet.engine.step.plan import StepPlan
from polyfleet.executors.block_moves import BlockMoves
from polyfleet.executors.host_memory import is_locked
from polyfleet.kernels.cached import arriving, leaving
from polyfleet.kernels.step import can_pin, upload
from polyfleet.kvcache.portable import Joined
from polyfleet.kvcache.storage import KvStorage

COPY_SECONDS = 300.0  # that a copy may take before the device counts as hung
POLL_SECONDS = 2e-5  # between two questions whether the device is done

Work = Callable[[], None]


class Mark(Protocol):
    """A place in a stream."""

    def query(self) -> bool:
        """Whether the device has come there."""
        ...


class Stream(Protocol):
    """An order of work on the device, as torch has it."""

    def record_event(self) -> Any:
        """The place behind all that it was given so far: a Mark."""
        ...

    def wait_event(self, event: Any) -> None:
        """What it is given from now on is done behind a mark."""
        ...


class Streams(Protocol):
    """The orders of work of one device."""

    @property
    def steps(self) -> Stream:
        """In which steps are done."""
        ...

    def new(self) -> Stream:
        """One more."""
        ...

    def do(self, stream: Any, work: Work) -> None:
        """Give a stream what `work` asks of the device."""
        ...


class DeviceStreams:
    """Of a device that works while the host goes on."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._module = device, torch.get_device_module(device)

    @property
    def steps(self) -> Stream:
        """The one that torch uses where nothing else is said."""
        current: Stream = self._module.current_stream(self._device)
        return current

    def new(self) -> Stream:
        """See Streams."""
        made: Stream = self._module.Stream(self._device)
        return made

    def do(self, stream: Any, work: Work) -> None:
        """See Streams."""
        with self._module.stream(stream), torch.inference_mode():
            work()


class OneStream:
    """The only stream of a device, whose torch module has events alone; and the orders of work of that device."""

    def __init__(self, device: torch.device) -> None:
        self._module = torch.get_device_module(device)

    @property
    def steps(self) -> Stream:
        """See Streams."""
        return self

    def new(self) -> Stream:
        """See Streams."""
        return self

    def record_event(self) -> Any:
        """See Stream."""
        event = self._module.Event()
        event.record()
        return event

    def wait_event(self, event: object) -> None:
        """What it was given before is done before."""

    def do(self, stream: Stream, work: Work) -> None:
        """See Streams."""
        with torch.inference_mode():
            work()


class _AtOnce:
    """The stream of a device that does what it is asked before it answers, and its marks."""

    def record_event(self) -> "_AtOnce":
        return self

    def wait_event(self, event: object) -> None:
        pass

    def query(self) -> bool:
        return True


class HostStreams:
    """Of a device on which all is done at once."""

    steps: Stream = _AtOnce()

    def new(self) -> Stream:
        """See Streams."""
        return self.steps

    def do(self, stream: Any, work: Work) -> None:
        """See Streams."""
        with torch.inference_mode():
            work()


def streams_of(device: torch.device, *, asynchronous: bool) -> Streams:
    """Of a device; `asynchronous`: it works while the host goes on."""
    if not asynchronous:
        return HostStreams()
    module = torch.get_device_module(device)
    return DeviceStreams(device) if hasattr(module, "Stream") else OneStream(device)


def wait_for(mark: Mark, seconds: float, what: str) -> None:
    """Until a device has come there; raises DeviceTimeout, which says what it did not finish."""
    deadline = time.monotonic() + seconds
    while not mark.query():
        if time.monotonic() > deadline:
            raise DeviceTimeout(f"the device did not finish {what} within {seconds:g} s")
        time.sleep(POLL_SECONDS)


class BlockCopies:
    """Copies of a KvStorage's blocks, from and to the host. Not thread-safe.

    What touches a block goes on behind the copies of it so far: a step behind those of its own sequences' blocks, a
    copy into blocks behind all steps so far too. A copy out of blocks waits for no step, so none under way may write
    them.
    """

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
        self._moves = moves or storage
        self._shapes = lru_cache(64)(storage.shapes)
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
        found = (self._marks.get(block) for block in blocks)
        for mark in {id(each): each for each in found if each is not None}.values():
            stream.wait_event(mark)

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
            held = self._moves.read_flat(*self._uploaded(blocks, local))
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
            self._moves.write_flat(numbers, held[0], of_local)

        touched = self._numbers(blocks, local)
        self.streams.do(self._into, bring)
        self.wait_for_steps(self._into)
        self.wait(self._into, touched)
        self.streams.do(self._into, write)
        self._read.append((self.mark(self._into, touched), room))
        self._let_go()

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
