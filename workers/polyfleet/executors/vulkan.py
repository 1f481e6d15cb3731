"""VulkanExecutor: experimental; a step's whole forward pass on a Vulkan device in float32, only tokens come back.

Greedy tokens are found on the device. Draws, penalties, masks and logprobs need the logits of their rows, which alone
are read back then and given to the sampler of the host.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyfleet.engine.choosing.executors import Workload
from polyfleet.engine.executor import Capacity, Fault, Footprint, Pending, StepOutput, StepTooLarge
from polyfleet.engine.pooling import pool
from polyfleet.engine.speculation.speculation import drafts_of
from polyfleet.engine.step.plan import Need, StepPlan
from polyfleet.graph.lowering import fuse
from polyfleet.kernels.vulkan.buffers import FLOAT_BYTES, row_bytes
from polyfleet.kernels.vulkan.device import VulkanDevice
from polyfleet.kernels.vulkan.program import NOT_FINITE, StepInputs, VulkanProgram, refusal
from polyfleet.loading.progress import Progress, silent
from polyfleet.sampling.arrays import Int32s
from polyfleet.sampling.draw import Drawn, Draws
from polyfleet.sampling.host import HostSampler
from polyfleet.sampling.masks import Masks
from polyfleet.tuning.device_defaults import ACCELERATOR

MOST_ROWS = 65_535  # workgroups that a dispatch has in one direction
ON_HOST = Need.RANDOM | Need.PENALTIES | Need.LOGPROBS | Need.MASKS


@dataclass(slots=True)
class VulkanStep(Pending):
    """A step that the device computes. Copies of what its plan said."""

    num_rows: int
    row_starts: Int32s  # [B + 1]
    draw_sequences: NDArray[np.int64]  # [S]
    draws: Draws | None  # None: the device finds all tokens
    pooled: Int32s  # [P]
    pool_kinds: Int32s  # [P]
    outputs: bool  # whether the graph's are wanted
    drawn: Drawn | None = None  # the likeliest tokens, once they are here, with others in their rows
    broken: NDArray[np.uint32] | None = None  # [T] 1 where a row is not finite


class VulkanExecutor:
    """Runs a KernelGraph through WGSL shaders; see `polyfleet.engine.executor.Executor`."""

    name = "vulkan"
    depth = 1
    dtype = "float32"

    def __init__(self, workload: Workload, progress: Progress = silent) -> None:
        """Opens the device and uploads the weights; raises VulkanError with one sentence."""
        self._estimate = self.footprint(workload)
        self._graph = fuse(workload.graph)
        self._device = VulkanDevice.open()
        self._program = VulkanProgram(self._device, self._graph, workload.weights, progress)
        self._sampler = HostSampler()
        self._most_rows = MOST_ROWS

    @classmethod
    def refuses(cls, workload: Workload) -> str:
        """Shapes and ops for which there is no shader."""
        return refusal(fuse(workload.graph), workload.weights)

    @classmethod
    def footprint(cls, workload: Workload) -> Footprint:
        """Everything in float32."""
        weights = sum(each.rows * each.columns for each in workload.weights.values()) * FLOAT_BYTES
        options = workload.options
        row, selected = row_bytes(fuse(workload.graph))
        rows = options.step_tokens or ACCELERATOR.step_tokens
        sequences = options.max_sequences or ACCELERATOR.max_sequences
        workspace = row * rows + selected * min(rows, sequences * (1 + drafts_of(options)))
        kv_per_token = sum(2 * each.heads * each.width for each in workload.graph.caches) * FLOAT_BYTES
        return Footprint(weights, kv_per_token, workspace)

    @classmethod
    def build(cls, workload: Workload, progress: Progress) -> "VulkanExecutor":
        """Upload the weights; raises VulkanError without a device, or where it can't hold them."""
        return cls(workload, progress)

    def measure(self) -> Footprint:
        """The estimate, with what was uploaded."""
        return replace(self._estimate, weights=self._program.weight_bytes)

    def allocate(self, capacity: Capacity) -> None:
        """Buffers for the KV cache and for the largest step; raises VulkanError where one is too large to be bound."""
        self._program.allocate(
            num_blocks=capacity.num_blocks,
            block_size=capacity.block_size,
            max_sequences=capacity.max_sequences,
            max_blocks=capacity.max_blocks,
            step_tokens=capacity.step_tokens,
            max_draws=capacity.max_draws,
        )
        self._most_rows = min(MOST_ROWS, capacity.step_tokens)

    def launch(self, plan: StepPlan) -> VulkanStep:
        """Upload the step and start it."""
        if plan.num_rows > self._most_rows:
            raise StepTooLarge(f"{plan.num_rows} rows are more than {self._most_rows}")
        draws = plan.draws() if plan.needs & ON_HOST else None
        self._sampler.start(plan.starts)
        self._program.run(_inputs(plan))
        kept = (plan.row_starts.copy(), plan.draw_sequences, draws, plan.pooled.copy(), plan.pool_kinds.copy())
        return VulkanStep(plan.num_rows, *kept, bool(plan.needs & Need.OUTPUTS))

    def draw(self, pending: Pending, masks: Masks | None = None) -> None:
        """Read the logits back of rows whose likeliest token is not all that is wanted, and draw here."""
        step = _step(pending)
        if step.draws is None:
            return
        draws = replace(step.draws, masks=masks)
        rows = np.flatnonzero(~draws.greedy | draws.penalised | draws.masked | draws.with_logprobs)
        if not len(rows):
            return
        likeliest = self._likeliest(step)
        logits = self._program.read_rows(self._graph.logits, rows)
        drawn = self._sampler.draw(logits, draws.take(rows), likeliest.take(rows))
        step.drawn = likeliest.put(rows, drawn)

    def collect(self, pending: Pending, timeout: float) -> StepOutput:
        """Wait for the device, as long as its driver does: WebGPU has no shorter limit."""
        step = _step(pending)
        drawn = self._likeliest(step) if step.drawn is None else step.drawn
        assert step.broken is not None
        faults = np.logical_or.reduceat(step.broken != 0, step.row_starts[:-1])
        faults[step.draw_sequences] |= ~drawn.finite
        pooled: NDArray[Any] | None = None
        if len(step.pooled):
            hidden = self._program.read_floats(self._graph.hidden, step.num_rows)
            pooled = pool(hidden, step.row_starts, step.pooled, step.pool_kinds)[0].numpy()
        values = self._graph.outputs if step.outputs else ()
        outputs = tuple(self._program.read_floats(value, step.num_rows).numpy() for value in values)
        return StepOutput(drawn.token_ids, faults * np.int8(Fault.NOT_FINITE), drawn.logprobs, pooled, outputs)

    def _likeliest(self, step: VulkanStep) -> Drawn:
        """Wait for the device: the likeliest token of each draw. Notes which rows are broken."""
        best, step.broken = self._program.read_results(step.num_rows)
        best = best[: len(step.draw_sequences)]
        finite = best != NOT_FINITE
        return Drawn(np.where(finite, best, 0).astype(np.int64), finite)

    def export_blocks(self, blocks: Sequence[int]) -> tuple[NDArray[Any], ...]:
        """Of each cache [2, tokens, kv heads, width] float32."""
        return tuple(self._program.read_blocks(cache, blocks) for cache in range(len(self._graph.caches)))

    def import_blocks(self, blocks: Sequence[int], caches: Sequence[NDArray[Any]]) -> None:
        """The reverse."""
        for cache, numbers in enumerate(caches):
            self._program.write_blocks(cache, blocks, numbers)

    def implementations(self) -> Mapping[str, str]:
        """Every op is a shader."""
        return {op.kind.value: f"vulkan ({self._device.name})" for op in self._graph.ops}

    def close(self) -> None:
        """Destroy the device, and with it every buffer."""
        self._device.close()


def _step(pending: Pending) -> VulkanStep:
    if not isinstance(pending, VulkanStep):
        raise TypeError(f"{pending!r} is no step of this executor")
    return pending


def _inputs(plan: StepPlan) -> StepInputs:
    """Each row with its slot; of the block tables the rows from the first that changed to the last."""
    first, end = (int(plan.changed.min()), int(plan.changed.max()) + 1) if len(plan.changed) else (0, 0)
    slots = np.repeat(plan.slots, np.diff(plan.row_starts))
    tables, cleared = plan.block_tables[first:end], plan.cleared_blocks.tolist()
    rows = plan.token_ids, plan.positions, slots, plan.draw_rows
    return StepInputs(*rows, tables, first, cleared, plan.inputs)
