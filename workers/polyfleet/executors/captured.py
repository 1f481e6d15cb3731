"""The captured executor: decode steps and those of few rows are graphs of the device, one a bucket; others eager."""

import logging
import math
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyfleet.backends.accelerator import graphs_of
from polyfleet.engine.choosing.executors import Workload
from polyfleet.engine.executor import Capacity, Footprint
from polyfleet.engine.step.needs import ADAPTED, LIKELIEST, Need
from polyfleet.engine.step.plan import NOTHING, StepPlan
from polyfleet.executors.eager import EagerExecutor
from polyfleet.executors.mixing import MixedBuffers
from polyfleet.executors.staging import Slips
from polyfleet.executors.torch_memory import memory_errors, statistics
from polyfleet.executors.torch_pending import TorchPending
from polyfleet.graph.adapt import adapted as with_adapters
from polyfleet.graph.adapt import few_weights
from polyfleet.graph.lowering import fuse
from polyfleet.graph.narrow import narrow
from polyfleet.kernels.context import DTYPES
from polyfleet.kernels.dispatch import Target, choose
from polyfleet.kernels.step import upload
from polyfleet.kernels.table import implementations
from polyfleet.kernels.torch.program import Program
from polyfleet.kernels.triton.stepping import DecodeBuffers, TritonMasking
from polyfleet.kernels.triton.tuning import tuning
from polyfleet.kvcache.storage import KvStorage
from polyfleet.loading.progress import Progress, silent

log = logging.getLogger(__name__)

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)  # and from there on every BUCKET_STEP
BUCKET_STEP = 32
MIXED = (32, 64, 128, 192, 256, 384, 512)  # rows of steps with prompts that have graphs,
MIXED_SEQUENCES = 128  # and sequences in one of them, at most
BLOCK_SIZE = 64  # where the options name none
CAPTURE_SECONDS = 30.0  # at most, when memory is allocated; what is left is captured when it is needed

Work = Callable[[], None]


@dataclass(slots=True)
class _Captured:
    """A bucket's step: what replays it, and the logits [rows, V] that it leaves; of a mixed one also rows' sums."""

    replay: Work
    found: list[Tensor]  # where work is only repeated they are others each time


def buckets(max_sequences: int) -> tuple[int, ...]:
    """Batch sizes that have graphs: every batch is padded to the next of them."""
    above = range(BUCKETS[-1] + BUCKET_STEP, max_sequences + BUCKET_STEP, BUCKET_STEP)
    return tuple(sorted({min(size, max_sequences) for size in (*BUCKETS, *above)}))


class CapturedExecutor(EagerExecutor):
    """A step in which every sequence has one row and draws is one launch of many kernels.

    Its inputs are four numbers a sequence, copied into buffers that the graph reads; block tables stay on the device
    and change by what the plan says has changed. The likeliest tokens are drawn in the graph, others by the sampler.
    Steps with adapters have graphs of their own, whichever adapters they are; adapters' matrices change in place.
    Steps with prompts, or drafts, have some too where they have few rows and no adapters, and no op has a state.
    """

    name = "captured"
    kv_dtypes = frozenset({"fp8"})
    _masking = TritonMasking()

    @classmethod
    def refuses(cls, workload: Workload) -> str:
        """Devices without graph capture or Triton, and ops of which no kernel can be captured."""
        if reason := super().refuses(workload):
            return reason
        if not workload.capabilities.graph_capture:
            return f"{workload.device} captures no graphs"
        if workload.graph.inputs:
            return "models with inputs beside their tokens are not captured"
        device = torch.device(workload.device)
        chosen = choose(implementations(), Target(device.type, DTYPES[workload.dtype], workload.facts))
        left = sorted({op.kind.value for op in fuse(workload.graph).ops if not chosen[op.kind].capturable})
        if left:
            return f"no kernel here that a graph can hold computes {', '.join(left)}"
        if not workload.graph.causal:
            return "what is not causal is not captured: a step has its sequences whole"
        block_size = workload.options.block_size
        if block_size and (block_size < 16 or block_size & (block_size - 1)):
            return f"its kernels read blocks of 16, 32, 64 … tokens, not of {block_size}"
        return ""

    def __init__(
        self,
        workload: Workload,
        progress: Progress = silent,
        *,
        depth: int = 0,
        capture: Callable[[Work], Work] | None = None,
    ) -> None:
        """`capture` makes of work on the device what does it again; by default a graph of the device's."""
        options = replace(workload.options, block_size=workload.options.block_size or BLOCK_SIZE)
        self._graphs: dict[tuple[int, bool], _Captured] = {}  # of each bucket, without adapters and with
        self._mixed: dict[int, tuple[MixedBuffers, _Captured]] = {}  # of steps with prompts, by their rows
        self._last_graph: Any = None
        self._narrow: dict[bool, Program] = {}  # of steps with few rows, without adapters and with
        self._measuring = False
        self._capture = capture or self._capture_graph
        super().__init__(replace(workload, options=options), progress, depth=depth)

    def measure(self) -> Footprint:
        """As the eager executor's, and what the graphs take."""
        self._measuring = True
        try:
            measured = super().measure()
        finally:
            self._measuring = False
        known = statistics(self._device)
        if known is None:
            return measured
        sizes = buckets(self._capacity.max_sequences)
        before = known.memory_reserved(self._device)
        with memory_errors(), torch.inference_mode():
            for adapted in self._kinds():
                self._captured_of(sizes[-1], adapted)
            for size in self._mixed_sizes[-1:]:
                self._mixed_of(size)
        graph = known.memory_reserved(self._device) - before
        vocabulary = self._graph.widths[self._graph.logits]
        rows = len(self._kinds()) * sum(sizes[:-1]) + sum(map(self._mixed_sequences, self._mixed_sizes[:-1]))
        logits = rows * vocabulary * self._dtype.itemsize
        self._forget()
        return replace(measured, workspace=measured.workspace + graph + logits)

    def allocate(self, capacity: Capacity) -> None:
        """The eager executor's memory, the buffers that graphs read, and the graphs, as far as time allows."""
        self._forget()
        super().allocate(capacity)
        self._sizes = buckets(capacity.max_sequences)
        shape = (capacity.max_sequences, capacity.table_width)
        sizes = self._sizes[-1], capacity.max_blocks, capacity.block_size
        pools = capacity.table_width // capacity.max_blocks
        with memory_errors(), torch.inference_mode():
            self._slot_tables = torch.zeros(shape, dtype=torch.int64, device=self._device)
            self._buffers = DecodeBuffers(*sizes, self._device, pools)
            self._slips = Slips(self.depth, sizes[0], locked=self._asynchronous)
        self._every = np.arange(sizes[0] + 1, dtype=np.int32)
        if not self._measuring:  # ranks of a group take each other's time, and capture alike
            together = self._workload.ranks is not None
            self._capture_all(math.inf if together else time.monotonic() + CAPTURE_SECONDS)

    def close(self) -> None:
        """Graphs first: they hold what they were captured over."""
        self._forget()
        self._narrow.clear()
        super().close()

    def _forget(self) -> None:
        self._graphs.clear()
        self._mixed.clear()
        self._last_graph = None

    def _capture_all(self, deadline: float) -> None:
        with memory_errors(), torch.inference_mode():
            for size in reversed(self._sizes):  # what the largest takes does for the others
                for adapted in self._kinds():
                    if time.monotonic() > deadline:
                        log.info("graphs of steps with up to %d rows are left to be captured when needed", size)
                        return
                    self._captured_of(size, adapted)
            for size in reversed(self._mixed_sizes):
                if time.monotonic() < deadline:
                    self._mixed_of(size)

    def _kinds(self) -> tuple[bool, ...]:
        """Of graphs: without adapters, and with where there are some."""
        return (False, True) if (True, True) in self._programs else (False,)

    def _launch(self, plan: StepPlan) -> TorchPending:
        if len(plan.changed):
            moved = upload(np.concatenate((plan.changed, plan.block_tables[plan.changed].reshape(-1))), self._device)
            moved = moved.long()
            count = len(plan.changed)
            self._slot_tables.index_copy_(0, moved[:count], moved[count:].view(count, -1))
        decodes = plan.num_rows == len(plan.slots) == plan.num_draws > 0
        other = len(plan.pooled) or (not LIKELIEST[plan.needs] and plan.needs & Need.OUTPUTS)
        if decodes and not other:
            return self._replay(plan)
        plain = not other and not plan.needs & Need.ADAPTERS and plan.given is None
        sizes = (size for size in self._mixed_sizes if plain and size >= plan.num_rows)
        if (size := next(sizes, 0)) and (mixed := self._mixed_of(size))[0].takes(plan):
            return self._replay_mixed(plan, *mixed)
        return super()._launch(plan)

    def _replay(self, plan: StepPlan) -> TorchPending:
        rows, adapted = plan.num_rows, ADAPTED[plan.needs]
        size = self._sizes[bisect_left(self._sizes, rows)]
        captured = self._captured_of(size, adapted)
        self._begin(plan)
        slip, (numbers, results) = self._slips.next(), self._buffers.of(size)
        numbers.copy_(slip.filled(plan, size), non_blocking=True)
        captured.replay()
        starts = self._every[: rows + 1]
        if not LIKELIEST[plan.needs]:
            slip.done = self._mark()
            slots = upload(plan.draw_slots.astype(np.int64), self._device)
            logits = captured.found[0][:rows]
            return TorchPending(plan.draws(), starts[:rows], NOTHING, logits, slots, starts, None, None)
        drawn = slip.fetched(results, size, rows)
        slip.done = done = self._mark()
        return TorchPending(None, starts[:rows], NOTHING, None, None, starts, None, None, drawn=drawn, done=done)

    def _begin(self, plan: StepPlan) -> None:
        self._sampler.start(plan.starts)
        if len(plan.cleared_blocks):
            self._storage.clear(upload(plan.cleared_blocks.astype(np.int64), self._device))

    def _replay_mixed(self, plan: StepPlan, buffers: MixedBuffers, captured: _Captured) -> TorchPending:
        self._begin(plan)
        host = buffers.packed(plan)
        buffers.numbers.copy_(host.pin_memory() if self._asynchronous else host, non_blocking=True)
        captured.replay()
        logits, sums = captured.found
        rest = sums[: plan.num_rows] if plan.num_rows > plan.num_draws else None
        slots = upload(plan.draw_slots.astype(np.int64), self._device)
        sequences, starts = (plan.draw_sequences, plan.pooled.copy()), plan.row_starts.copy()
        return TorchPending(plan.draws(), *sequences, logits[: plan.num_draws], slots, starts, rest, None)

    def _bind(self, storage: KvStorage, progress: Progress) -> None:
        """Steps of few rows have a program of their own, over the same weights and caches."""
        super()._bind(storage, progress)
        possible = tuning(self._device).narrow and self._dtype is not torch.float16  # whose range gained rows may leave
        narrowed = narrow(self._graph) if possible and self._workload.ranks is None else None
        graphs = {} if narrowed is None else {False: narrowed}
        if narrowed is not None and True in self._kinds() and few_weights(narrowed):
            graphs[True] = with_adapters(narrowed)
        with torch.inference_mode():
            programs = {kind: Program(each, self._chosen, self._bound, silent) for kind, each in graphs.items()}
        self._narrow = programs

    def _captured_of(self, size: int, adapted: bool) -> _Captured:
        if (size, adapted) not in self._graphs:
            self._graphs[size, adapted] = self._captured(size, adapted)
        return self._graphs[size, adapted]

    def _captured(self, size: int, adapting: bool) -> _Captured:
        """Over padding alone, which leaves no trace."""
        logits: list[Tensor] = []
        tuned = tuning(self._device)
        few = size <= (tuned.most_rows if self._context.packed and not adapting else tuned.narrow)
        usual = self._programs[True, adapting]
        program = self._narrow.get(adapting, usual) if few else usual

        def work() -> None:
            found = program.run(self._buffers.prepare(size, self._slot_tables, self._last_token))[-1]
            self._buffers.pick(found, self._last_token)
            logits[:] = [found]

        self._buffers.numbers.fill_(-1)
        work()  # what is compiled or made at its first use is so now
        return _Captured(self._capture(work), logits)

    @property
    def _mixed_sizes(self) -> tuple[int, ...]:
        """None where an op can't be captured over sequences with several rows, or a step has two pools."""
        fits = not self._graph.states and not self._capacity.local_blocks and self._workload.ranks is None
        return tuple(size for size in MIXED if size <= self._capacity.step_tokens) if fits else ()

    def _mixed_sequences(self, size: int) -> int:
        return min(size, self._capacity.max_draws, MIXED_SEQUENCES)

    def _mixed_of(self, size: int) -> tuple[MixedBuffers, _Captured]:
        if size not in self._mixed:
            buffers = MixedBuffers(size, self._mixed_sequences(size), self._capacity.block_size, self._device)
            found: list[Tensor] = []

            def work() -> None:
                outputs = self._programs[False, False].run(buffers.step(self._slot_tables, self._last_token))
                found[:] = outputs[-1], outputs[0].sum(dim=-1, dtype=torch.float32)

            buffers.numbers.copy_(buffers.packed(None))
            work()
            self._mixed[size] = buffers, _Captured(self._capture(work), found)
        return self._mixed[size]

    def _capture_graph(self, work: Work) -> Work:
        graphs = graphs_of(self._device.type)
        graph = graphs.new_graph()
        graphs.module.synchronize(self._device)
        with self._copies.alone, graphs.capture(graph, share=self._last_graph):
            work()
        self._last_graph = graph
        replay: Work = graph.replay
        return replay
