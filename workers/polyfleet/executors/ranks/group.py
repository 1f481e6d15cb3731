"""The group executor: an executor in each of several processes, this one among them, which compute a model together.

This process is rank 0. What Batcher asks of it, it has the others do too: plans go through shared memory, all else over
sockets. Each rank has its part of weights and KV heads; sums over ranks are the graph's own ops. Rank 0 draws.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from polyfleet.backends import BackendRegistry
from polyfleet.backends.protocol import split_device
from polyfleet.engine.choosing.executors import EXACT, KNOWN, ExecutorKind, Workload
from polyfleet.engine.executor import (
    Capacity,
    DeviceTimeout,
    Executor,
    Footprint,
    Pending,
    StepOutput,
    StepTooLarge,
)
from polyfleet.engine.step.plan import StepPlan
from polyfleet.executors.ranks.board import room_for
from polyfleet.executors.ranks.collectives import DistributedRanks
from polyfleet.executors.ranks.members import Answer, Members, RankLost
from polyfleet.executors.ranks.parts import adapter_of, of_rank
from polyfleet.executors.ranks.wire import Arrays, Message
from polyfleet.graph.shard import NotSharded, shard
from polyfleet.kernels.adapters import Parts
from polyfleet.loading.progress import Progress, halves
from polyfleet.loading.shapes import check_numbers
from polyfleet.sampling.masks import Masks

CHECK_SECONDS = 0.2  # between two looks at the other ranks while a step is awaited
Result = TypeVar("Result")


class GroupKind:
    """An executor's kind, for a group of ranks of the model at `path`."""

    def __init__(self, kind: ExecutorKind, path: str) -> None:
        self.name = kind.name
        self.kv_dtypes = getattr(kind, "kv_dtypes", frozenset[str]())
        self.takes_adapters = hasattr(kind, "set_adapter")
        self._kind = kind
        self._path = path
        self._mine: Workload | None = None  # of rank 0, made once: parts of stacks are copies

    def refuses(self, workload: Workload) -> str:
        """Executors that know no ranks, and models that can't be shared evenly."""
        if not self._path:
            return "each rank reads the model's files, and a recorded graph has none"
        if not hasattr(os, "memfd_create"):
            return "ranks share memory as Linux alone has it"
        if self.name not in EXACT:
            return f"the {self.name} executor does not compute in a group of ranks"
        try:
            return self._kind.refuses(self._first(workload))
        except NotSharded as error:
            return str(error)

    def footprint(self, workload: Workload) -> Footprint:
        """Of one rank, which is what a rank may take."""
        return self._kind.footprint(self._first(workload))

    def build(self, workload: Workload, progress: Progress) -> "GroupExecutor":
        """Start the other ranks, and build what each computes with; ValueError says which could not."""
        try:
            return GroupExecutor(self._kind, self._path, workload, self._first(workload), progress)
        except RankLost as error:
            raise ValueError(str(error)) from None

    def _first(self, workload: Workload) -> Workload:
        """What rank 0 computes."""
        if self._mine is None:
            self._mine = of_rank(workload, 0, workload.options.tensor_parallel)
        return replace(self._mine, options=workload.options)


class GroupExecutor:
    """Rank 0 of a group; see polyfleet.engine.executor.Executor. RankLost, once raised, is all that follows."""

    def __init__(self, kind: ExecutorKind, path: str, workload: Workload, mine: Workload, progress: Progress) -> None:
        """`mine` is rank 0's part of `workload`."""
        self.size = size = workload.options.tensor_parallel
        self._shard = shard(workload.graph, 0, size)
        self._copies = self._shard.copies
        self._folder = tempfile.mkdtemp(prefix="polyfleet-ranks-")
        self._members = Members(size)
        self._ranks: DistributedRanks | None = None
        self.depth = 1
        try:
            self._executor = self._build(kind, path, mine, progress)
        except BaseException:
            self.close()
            raise
        self.name, self.dtype, self.depth = kind.name, self._executor.dtype, self._executor.depth
        self.separates_windows = getattr(self._executor, "separates_windows", False)

    @property
    def pids(self) -> list[int]:
        """The other ranks' process ids."""
        return self._members.pids

    @property
    def alarm(self) -> int:
        """A descriptor that can be read from when the group is lost; `check` says why."""
        return self._members.alarm

    def check(self) -> None:
        """Raise RankLost where a rank died or hangs."""
        self._members.check()

    def implementations(self) -> Mapping[str, str]:
        """Rank 0's, which are all ranks'."""
        return self._executor.implementations()

    def measure(self) -> Footprint:
        """The most that a rank takes; what others hold of its device, more than of rank 0's, counts as weights."""
        mine, answers = self._together({"do": "measure"}, self._executor.measure)
        found = [mine]
        for answer, _ in answers:
            theirs = Footprint(**answer["footprint"])
            held = 0 if self._shared else max(0, self._free_bytes - answer["free_bytes"])
            found.append(replace(theirs, weights=theirs.weights + held))
        return Footprint(
            **{field.name: max(getattr(each, field.name) for each in found) for field in fields(Footprint)}
        )

    def allocate(self, capacity: Capacity) -> None:
        """On each rank; then the board has room for plans."""
        self._capacity = capacity
        room = room_for(capacity)
        self._members.make_room(room)
        message = {"do": "allocate", "capacity": asdict(capacity), "room": room}
        self._together(message, lambda: self._executor.allocate(capacity))

    def launch(self, plan: StepPlan) -> Pending:
        """Post the plan, and start the forward pass here too. What fails on the way breaks the group."""
        most = self._capacity.step_tokens
        if plan.num_rows > most:
            raise StepTooLarge(f"a step has room for {most} rows, not for {plan.num_rows}")

        def post_and_launch() -> Pending:
            self._members.board.post(plan, self._members.check)
            self._members.wake()
            return self._executor.launch(plan)

        try:
            return self._calling(post_and_launch)
        except RankLost:
            return _LOST

    def draw(self, pending: Pending, masks: Masks | None = None) -> None:
        """On rank 0, from where the others have the tokens."""
        if pending is _LOST:
            return
        if self.depth == 1:
            self._executor.draw(pending, masks)  # on the host: nobody waits for it
            return
        with suppress(RankLost):  # which `collect` says
            self._calling(lambda: self._executor.draw(pending, masks))

    def collect(self, pending: Pending, timeout: float) -> StepOutput:
        """Wait for a step, and look after the other ranks meanwhile."""
        deadline = time.monotonic() + timeout

        def look() -> StepOutput:
            while True:
                self._members.check()
                left = deadline - time.monotonic()
                try:
                    return self._executor.collect(pending, max(0.0, min(left, CHECK_SECONDS)))
                except DeviceTimeout:
                    if left <= CHECK_SECONDS:
                        raise

        return self._calling(look)

    def export_blocks(self, blocks: Sequence[int], local: Sequence[int] = ()) -> tuple[NDArray[Any], ...]:
        """All ranks' heads side by side."""
        message = {"do": "export", "blocks": list(blocks), "local": list(local)}
        mine, answers = self._apart(message, lambda: self._executor.export_blocks(blocks, *filter(None, (local,))))
        parts = [mine, *(arrays for _, arrays in answers)]
        return tuple(
            np.concatenate([parts[rank][at] for rank in range(0, self.size, copies)], axis=2)
            for at, copies in enumerate(self._copies)
        )

    def import_blocks(self, blocks: Sequence[int], caches: Sequence[NDArray[Any]], local: Sequence[int] = ()) -> None:
        """To each rank its heads."""
        parts = [[self._heads(each, at, rank) for at, each in enumerate(caches)] for rank in range(self.size)]
        message = {"do": "import", "blocks": list(blocks), "local": list(local)}
        self._apart(message, lambda: self._executor.import_blocks(blocks, parts[0], *filter(None, (local,))), parts[1:])

    def set_adapter(self, number: int, parts: Parts) -> None:
        """To each rank the whole of it, of which it takes its part."""
        message = {"do": "adapter", "number": number, "names": list(parts)}
        arrays = [matrix.numpy() for part in parts.values() for matrix in (part.down, part.up)]
        mine = adapter_of(self._shard, parts)
        executor: Any = self._executor
        self._apart(message, lambda: executor.set_adapter(number, mine), [arrays] * (self.size - 1))

    def close(self) -> None:
        """End the other ranks; this one frees what it holds, unless its device waits for ever for one that was lost."""
        stuck = bool(self._members.lost) and self.depth > 1
        self._members.close()
        if hasattr(self, "_executor") and not stuck:
            self._executor.close()  # first: what it captured holds the group's connections
        if self._ranks is not None and not stuck:
            self._ranks.leave()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _build(self, kind: ExecutorKind, path: str, workload: Workload, progress: Progress) -> Executor:
        accelerator, index = split_device(workload.options.device)
        device = BackendRegistry.get(accelerator)
        backend = device.communication()
        self._free_bytes, self._shared = device.memory(index).free_bytes, workload.capabilities.divisible
        if not (able := backend.available()).available:
            raise ValueError(f"{accelerator} devices compute in no group here: {able.reason}")
        devices = [accelerator if self._shared else f"{accelerator}:{index + rank}" for rank in range(self.size)]
        start: Message = {
            **{"do": "start", "path": path, "size": self.size, "backend": backend.name},
            **{"store": f"{self._folder}/store", "target": KNOWN[kind.name], "dtype": workload.dtype},
            **{"options": asdict(workload.options), "devices": devices},
        }
        self._members.tell(start)
        self._members.answers()  # they are there, and join next
        meeting = (backend.name, start["store"], 0, self.size, torch.device(workload.device))
        peer_memory = workload.capabilities.peer_memory
        self._ranks = self._calling(lambda: DistributedRanks(*meeting, peer_memory=peer_memory))
        mine = replace(workload, ranks=self._ranks)
        reading, building = halves(progress)
        check_numbers(path, mine.weights, reading)
        executor = kind.build(mine, building)
        self._members.answers()
        return executor

    def _heads(self, cache: NDArray[Any], at: int, rank: int) -> NDArray[Any]:
        """A rank's of a cache [2, tokens, heads, width]."""
        copies = self._copies[at]
        count = cache.shape[2] * copies // self.size
        first = rank // copies * count
        return cache[:, :, first : first + count]

    def _together(self, message: Message, here: Callable[[], Result]) -> tuple[Result, list[Answer]]:
        """Have all ranks do something in which they wait for each other; what it came to here and there."""

        def do() -> tuple[Result, list[Answer]]:
            self._members.tell(message)
            return here(), self._members.answers()

        return self._calling(do)

    def _apart(
        self, message: Message, here: Callable[[], Result], arrays: Sequence[Arrays] = ()
    ) -> tuple[Result, list[Answer]]:
        """Have each rank do something alone, so that one may fail in it."""
        self._members.check()
        self._members.tell(message, arrays)
        try:
            mine = here()
        finally:
            answers = self._members.answers()
        return mine, answers

    def _calling(self, work: Callable[[], Result]) -> Result:
        """Do what waits for the other ranks; what fails in it leaves them waiting, and the group is lost."""
        self._members.check()
        self._members.calling = True
        try:
            return work()
        except DeviceTimeout:
            raise
        except Exception as error:
            raise self._members.broken(error) from error
        finally:
            self._members.calling = False


class _Lost(Pending):
    """A step of a group that was lost when it was launched."""


_LOST = _Lost()
