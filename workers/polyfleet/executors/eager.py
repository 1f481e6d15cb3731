"""The eager executor: runs a KernelGraph op by op in torch, on any device. The reference and the fall-back."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyfleet.engine.choosing.executors import Workload
from polyfleet.engine.executor import Capacity, Footprint, Pending, StepOutput, StepTooLarge
from polyfleet.engine.pooling import pool
from polyfleet.engine.step.needs import ADAPTED
from polyfleet.engine.step.plan import NOTHING, Need, StepPlan
from polyfleet.executors.blocks.access import BlockAccess
from polyfleet.executors.blocks.copies import BlockCopies
from polyfleet.executors.blocks.host_rows import STAGE_BYTES
from polyfleet.executors.blocks.moves import block_moves
from polyfleet.executors.blocks.streams import streams_of, wait_for
from polyfleet.executors.torch_memory import (
    cache_dtype,
    estimate,
    memory_errors,
    missing_dtype,
    profile_plan,
    statistics,
)
from polyfleet.executors.torch_pending import TorchPending, output_of
from polyfleet.graph.adapt import lowered
from polyfleet.kernels.adapters import AdapterTables, Parts
from polyfleet.kernels.cached import CODES
from polyfleet.kernels.context import DTYPES, KernelContext
from polyfleet.kernels.dispatch import Target, choose
from polyfleet.kernels.step import Step, lay_out, upload
from polyfleet.kernels.table import implementations
from polyfleet.kernels.torch.batched import prefer_steady_attention
from polyfleet.kernels.torch.program import Program
from polyfleet.kvcache.storage import KvStorage
from polyfleet.loading.progress import Progress, silent
from polyfleet.sampling.device import DeviceDrawn, DeviceSampler, Masking, can_draw
from polyfleet.sampling.group import GroupSampler
from polyfleet.sampling.host import HostSampler
from polyfleet.sampling.masks import Masks


class EagerExecutor(BlockAccess):
    """Weights are dequantised to the computing dtype once, when it is built; a step then only launches kernels.

    On accelerators nothing in `launch` and `draw` waits for the device, which so can have the next step before this
    one is collected: tokens that are still being drawn are read from where `draw` leaves them there.
    """

    name = "eager"
    takes_rows = True
    kv_dtypes = frozenset({"int8", "fp8"})
    separates_windows = True
    _masking: Masking | None = None  # the device's own kernels, where the executor is for devices that have some

    @classmethod
    def refuses(cls, workload: Workload) -> str:
        """It runs everything, in the dtypes that it knows."""
        if missing := missing_dtype(workload):
            return f"{workload.device} knows no {missing}, which kv_dtype {workload.options.kv_dtype} needs"
        return "" if workload.dtype in DTYPES else f"it computes in {', '.join(DTYPES)}, not in {workload.dtype}"

    @classmethod
    def footprint(cls, workload: Workload) -> Footprint:
        """Every weight in the computing dtype."""
        found = estimate(workload)
        return found if cls.separates_windows else replace(found, local_per_token=0)

    @classmethod
    def build(cls, workload: Workload, progress: Progress) -> "EagerExecutor":
        """The executor with its weights on the device. Sets torch's threads where the options name a number."""
        if workload.options.threads:
            torch.set_num_threads(workload.options.threads)
        with memory_errors():
            return cls(workload, progress)

    def __init__(self, workload: Workload, progress: Progress = silent, *, depth: int = 0) -> None:
        """`depth` 0: 2 on devices that are asynchronous and can draw, else 1."""
        self._workload = workload
        self._device = device = torch.device(workload.device)
        self.depth = depth or (2 if device.type != "cpu" and can_draw(device) else 1)
        self._asynchronous = self.depth > 1 and device.type != "cpu"
        self._event: Any = torch.get_device_module(device).Event if self._asynchronous else None
        kinds = [(True, False), (False, False), *[(True, True), (False, True)] * bool(workload.options.max_adapters)]
        self._lowered = {kind: lowered(workload.graph, every_row=kind[0], adapters=kind[1]) for kind in kinds}
        self._graph = self._lowered[True, False]
        self.dtype, self._dtype = workload.dtype, DTYPES[workload.dtype]
        codes = cache_dtype(workload) is CODES
        self._chosen = choose(implementations(), Target(device.type, self._dtype, workload.facts, codes=codes))
        self._spent = workload.spent if device.type == "cpu" and not workload.options.max_adapters else None
        self._context = KernelContext(
            *(workload.weights, device, self._dtype, (), 0),
            ranks=workload.ranks,
            weights_as=workload.options.weights.replace("dense", ""),
            looks=device.type != "cpu",
        )
        known = statistics(device)
        before = known.memory_allocated(device) if known else 0
        if graph := self._lowered.get((True, True)):
            sizes = workload.options.max_adapters, workload.options.rank
            tables = AdapterTables(graph, workload.weights, *sizes, self._dtype, device)
            self._context = replace(self._context, adapters=tables)
        prefer_steady_attention()
        self._block_size = workload.options.block_size or 16
        self._bind(self._allocated(1, self._block_size, 1), progress)
        self._weight_bytes = known.memory_allocated(device) - before if known else 0

    def implementations(self) -> Mapping[str, str]:
        """The name of the implementation of each op."""
        graph = self._lowered.get((True, True), self._graph)
        return {op.kind.value: self._chosen[op.kind].name for op in graph.ops}

    def finite_weights(self) -> frozenset[str]:
        """The weights whose numbers the device has found to be finite on their way to it: on a CPU none."""
        return self._context.finite()

    def measure(self) -> Footprint:
        """What is allocated, and what a large step takes beside it; the estimate where torch keeps no books."""
        known = statistics(self._device)
        expected = self.footprint(self._workload)
        if known is None:
            return expected
        capacity, plan = profile_plan(self._workload, self._block_size)
        self.allocate(capacity)
        known.reset_peak_memory_stats(self._device)
        before = known.memory_allocated(self._device)
        pending = self.launch(plan)
        self.draw(pending)
        self.collect(pending, timeout=600.0)
        workspace = known.max_memory_allocated(self._device) - before
        del pending
        known.empty_cache()
        if self._workload.options.host_cache_tokens:
            workspace += STAGE_BYTES
        return replace(expected, weights=self._weight_bytes, workspace=workspace)

    def allocate(self, capacity: Capacity) -> None:
        """The KV cache, all 0, and what is kept for each slot."""
        with memory_errors():
            sizes = capacity.num_blocks, capacity.block_size, capacity.max_sequences, capacity.local_blocks
            self._bind(self._allocated(*sizes), silent)
            self._last_token = torch.zeros(capacity.max_sequences, dtype=torch.int64, device=self._device)
        self._capacity = capacity
        vocabulary = self._graph.widths[self._graph.logits]
        self._sampler: HostSampler | DeviceSampler | GroupSampler = HostSampler()
        if self.depth > 1:
            sampler, ranks = DeviceSampler(self._device, vocabulary, self._masking), self._workload.ranks
            self._sampler = sampler if ranks is None else GroupSampler(sampler, ranks)

    def launch(self, plan: StepPlan) -> TorchPending:
        """Start the forward pass; raises StepTooLarge for more rows than there is room for."""
        most = self._capacity.step_tokens
        if plan.num_rows > most:
            raise StepTooLarge(f"a step has room for {most} rows, not for {plan.num_rows}")
        with memory_errors(), torch.inference_mode():
            self._copies.before_step(plan, self._capacity.max_blocks)
            return self._launch(plan)

    def draw(self, pending: Pending, masks: Masks | None = None) -> None:
        """Start the draws, and the way of all results to the host."""
        if not isinstance(pending, TorchPending) or pending.asked:
            raise ValueError("each step is drawn once")
        pending.asked = True
        if pending.drawn is not None:
            return
        logits, slots, draws = pending.logits, pending.draw_slots, pending.draws
        with memory_errors(), torch.inference_mode():
            if draws is not None and len(draws) and logits is not None and slots is not None:
                drawn = self._sampler.draw(logits, replace(draws, masks=masks))
                if isinstance(drawn, DeviceDrawn):
                    self._last_token.index_copy_(0, slots, drawn.token_ids)
                    drawn = drawn.staged()
                pending.drawn = drawn
            if pending.sums is not None:
                pending.sums = self._to_host(pending.sums)
            if pending.pooled is not None:
                values, finite = map(self._to_host, pending.pooled)
                pending.pooled = values, finite
            pending.outputs = tuple(self._to_host(each) for each in pending.outputs)
        pending.logits = pending.draw_slots = None
        pending.done = self._mark()

    def collect(self, pending: Pending, timeout: float) -> StepOutput:
        """Wait until the results are here; asks the device again and again, so that a hung one is noticed."""
        if not isinstance(pending, TorchPending):
            raise ValueError("a step is collected where it was launched")
        with memory_errors():
            if pending.done is not None:
                wait_for(pending.done, timeout, "a step")
            return output_of(pending)

    def set_adapter(self, number: int, parts: Parts) -> None:
        """Behind every launch before. What an adapter's numbers are in memory, and what they cost, is always there."""
        if self._context.adapters is None:
            raise ValueError("this executor was built without room for adapters")
        with torch.inference_mode():
            self._context.adapters.set(number, parts)

    def close(self) -> None:
        """Free weights and cache; nothing may be launched any more."""
        if self._rows is not None:
            self._rows.close()
        del self._programs, self._bound, self._storage, self._copies
        self._context.prepared.clear()
        self._context.packed.clear()
        if known := statistics(self._device):
            known.empty_cache()

    def _allocated(self, num_blocks: int, block_size: int, slots: int, local_blocks: int = 0) -> KvStorage:
        graph, local, shape = self._graph, self._workload.graph.local_caches, (num_blocks, block_size)
        placed = graph.caches, *shape, cache_dtype(self._workload), self._device
        return KvStorage.allocate(*placed, states=graph.states, slots=slots, local=local, local_blocks=local_blocks)

    def _bind(self, storage: KvStorage, progress: Progress) -> None:
        block_size = storage.caches[0].shape[3] if storage.caches else self._block_size
        context = replace(self._context, caches=storage.caches, block_size=block_size, states=storage.states)
        self._bound = context = replace(context, local=storage.local)
        first = {(True, False): (progress, self._spent)}  # which prepares the weights
        with torch.inference_mode():
            each = [(kind, graph, first.get(kind, (silent,))) for kind, graph in self._lowered.items()]
            self._programs = {kind: Program(graph, self._chosen, context, *said) for kind, graph, said in each}
            moves = block_moves(storage, self._workload.facts)
        streams = streams_of(self._device, asynchronous=self._asynchronous)
        self._storage, self._copies = storage, BlockCopies(storage, self._dtype, self._device, streams, moves)

    def _mark(self) -> Any:
        """An event behind all that the device was given so far; None where it has done it."""
        event = None if self._event is None else self._event()
        if event is not None:
            event.record()
        return event

    def _to_host(self, tensor: Tensor) -> Tensor:
        return tensor.to("cpu", non_blocking=self._asynchronous)

    def _launch(self, plan: StepPlan) -> TorchPending:
        step, draw_slots = self._stage(plan)
        self._sampler.start(plan.starts)
        outputs = self._program_of(plan).run(step, [upload(each, self._device).to(self._dtype) for each in plan.inputs])
        hidden, logits = outputs[0], outputs[-1]
        # What is not finite leaves nothing finite behind it: sums tell of the rows that have no logits.
        sums = hidden.sum(dim=-1, dtype=torch.float32) if plan.num_rows > plan.num_draws else None
        pooled = pool(hidden, plan.row_starts, plan.pooled, plan.pool_kinds) if len(plan.pooled) else None
        kept = outputs if plan.needs & Need.OUTPUTS else ()
        sequences = plan.draw_sequences, plan.pooled.copy()
        return TorchPending(plan.draws(), *sequences, logits, draw_slots, plan.row_starts.copy(), sums, pooled, kept)

    def _program_of(self, plan: StepPlan) -> Program:
        """Where some rows are not wanted at all, they end with the last layer's keys and values."""
        every_row = plan.num_draws == plan.num_rows or len(plan.pooled) > 0 or bool(plan.needs & Need.OUTPUTS)
        return self._programs[every_row, ADAPTED[plan.needs]]

    def _stage(self, plan: StepPlan) -> tuple[Step, Tensor]:
        """The plan on the device by one copy, and its `draw_slots`. Clears blocks, and fills drawn tokens in."""
        rows = (plan.token_ids, plan.positions, plan.draw_rows)
        sequences = (plan.slots, plan.lengths, plan.row_starts)
        block_size, columns = self._capacity.block_size, self._capacity.max_blocks
        layout = lay_out(rows, *sequences, plan.block_tables[:, :columns], block_size)
        drawn_rows = np.flatnonzero(plan.token_ids < 0)
        others = (plan.draw_slots, plan.cleared_blocks, drawn_rows, -1 - plan.token_ids[drawn_rows])
        adapted = plan.needs & Need.ADAPTERS
        adapters = np.repeat(plan.adapters[plan.slots], np.diff(plan.row_starts)) if adapted else NOTHING
        step, (draw_slots, cleared, into, drawn_slots, of_rows) = layout.send(self._device, *others, adapters)
        if self._capacity.local_blocks:
            local = lay_out(rows, *sequences, plan.block_tables[:, columns:], block_size)
            step = replace(step, local=local.send(self._device)[0])
        if len(adapters):
            step = replace(step, adapters=of_rows, host_adapters=adapters)
        if plan.given is not None:
            places, values = (upload(each, self._device) for each in plan.given)
            step = replace(step, given=(places.long(), values.to(self._dtype)))
        if len(plan.cleared_blocks):
            self._storage.clear(cleared)
        if len(drawn_rows) == plan.num_rows:
            torch.index_select(self._last_token, 0, drawn_slots, out=step.token_ids)
        elif len(drawn_rows):
            step.token_ids.index_copy_(0, into, self._last_token.index_select(0, drawn_slots))
        return step, draw_slots
