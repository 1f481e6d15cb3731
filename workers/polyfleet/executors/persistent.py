"""PersistentExecutor: a whole step of a KernelGraph in one call of the C++ CPU library, with no Python between ops."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfleet.backends.cpu import usable_cores
from polyfleet.engine.choosing.executors import Workload
from polyfleet.engine.executor import BlockImport, Capacity, Fault, Footprint, Pending, StepOutput, StepTooLarge
from polyfleet.engine.pooling import pool
from polyfleet.engine.step.plan import Need, StepPlan
from polyfleet.executors.step_fields import ADAPTERS, StepFields
from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.lowering import fuse
from polyfleet.kernels.adapters import Parts, table_numbers
from polyfleet.kernels.cpu import footprint, library
from polyfleet.kernels.cpu.blocks import read_blocks, shape_of, write_blocks
from polyfleet.kernels.cpu.footprint import HALF
from polyfleet.kernels.cpu.implementations import implementations, linear_formats
from polyfleet.kernels.cpu.library import instruction_sets
from polyfleet.kernels.cpu.model import CpuModel, unsupported
from polyfleet.kernels.cpu.program import programs
from polyfleet.kernels.weights.weight import Weights
from polyfleet.loading.progress import Progress
from polyfleet.sampling.draw import Drawn, Draws, Logprobs
from polyfleet.sampling.host import HostSampler
from polyfleet.sampling.masks import Masks
from polyfleet.tuning.device_defaults import BLOCK_SIZE, HOST, defaults_of
from polyfleet.wire.options import USUAL_RANK, EngineOptions

log = logging.getLogger(__name__)

MAX_INT32 = 2**31 - 1  # sizes cross the C ABI as int32
# As plain ints, which are compared faster. Sampled: by the host; all others are found in C++.
SAMPLED, OUTPUTS = int(Need.RANDOM | Need.PENALTIES | Need.LOGPROBS | Need.MASKS), int(Need.OUTPUTS)


@dataclass(slots=True)
class _Launched(Pending):
    """A step that was computed; where tokens are not greedy, what is left is to draw them."""

    token_ids: NDArray[Any]  # [S] the likeliest until others are drawn
    faults: NDArray[np.int8]  # [B]
    pooled: NDArray[Any] | None = None
    drawing: tuple[Tensor, Draws, NDArray[np.int64]] | None = None  # logits (a view), draws, which sequences draw
    logprobs: Logprobs | None = None
    outputs: tuple[NDArray[Any], ...] = ()


class PersistentExecutor:
    """Rows enter quantised weights as int8 in blocks of 32, the KV cache is float16 or int8 with a scale for each token
    and head, everything else is float32."""

    name = "persistent"
    takes_rows = True
    depth = 1
    dtype = "float32"
    separates_windows = True
    kv_dtypes = frozenset({"int8"})

    def __init__(
        self,
        graph: KernelGraph,
        weights: Weights,
        *,
        threads: int = 0,
        instruction_set: str = "auto",
        reproducible: bool = False,
        step_tokens: int = HOST.step_tokens,
        block_size: int = BLOCK_SIZE,
        max_adapters: int = 0,
        max_rank: int = USUAL_RANK,
        codes: bool = False,
        spent: Callable[[str], None] | None = None,
    ) -> None:
        """`threads` 0 takes all cores that may be used; more than these are not taken, with a warning.

        `step_tokens` and `block_size` are what `measure` counts on. `reproducible`: a row computes to the same bits in
        any step. `codes`: the KV cache is int8. `spent` hears of each weight that is packed and not read again. Raises
        ValueError for what can't be run or chosen, LibraryUnavailable without the library.
        """
        _check_size("threads", threads, least=0)
        self.instruction_set, self.threads = choose_instruction_set(instruction_set), choose_threads(threads)
        self._formats = linear_formats(graph, weights)
        self._model = CpuModel(
            *(graph, weights),
            threads=self.threads,
            instruction_set=self.instruction_set,
            wide=not reproducible,
            codes=codes,
            adapters=max_adapters > 0,
            spent=spent,
        )
        self._footprint = estimate(graph, weights, step_tokens, block_size, adapters=max_adapters > 0, codes=codes)
        self._adapter_bytes = HALF * max_adapters * table_numbers(graph, weights, max_rank)
        self._kinds = [op.kind.value for op in fuse(graph).ops]
        self._latent = [cache.latent for cache in graph.caches]  # whose keys are their values, transposed
        self._num_rows = 0  # of the largest step
        self._step = StepFields()
        self._sampler = HostSampler()

    @classmethod
    def refuses(cls, workload: Workload) -> str:
        """Without the library; and what the library has no code for."""
        try:
            library.load()
        except library.LibraryUnavailable as error:
            return str(error)
        return unsupported(workload.graph, workload.weights)

    @classmethod
    def footprint(cls, workload: Workload) -> Footprint:
        """Quantised weights stay quantised, and the cache is float16 or int8 whatever the dtype."""
        graph, weights, options = workload.graph, workload.weights, workload.options
        adapts, codes = options.max_adapters > 0, options.kv_dtype == "int8"
        expected = estimate(graph, weights, *_sizes(options), adapters=adapts, codes=codes)
        adapters = HALF * options.max_adapters * table_numbers(graph, weights, options.rank)
        return replace(expected, weights=expected.weights + adapters)

    @classmethod
    def build(cls, workload: Workload, progress: Progress) -> "PersistentExecutor":
        """Packs the weights; raises ValueError."""
        options = workload.options
        step_tokens, block_size = _sizes(options)
        executor = cls(
            workload.graph,
            workload.weights,
            threads=options.threads,
            reproducible=options.reproducible,
            step_tokens=step_tokens,
            block_size=block_size,
            max_adapters=options.max_adapters,
            max_rank=options.rank,
            codes=options.kv_dtype == "int8",
            spent=workload.spent,
        )
        progress(1.0)
        return executor

    def measure(self) -> Footprint:
        """The weights as they lie in memory, and what all adapters may take."""
        return replace(self._footprint, weights=self._model.weight_bytes + self._adapter_bytes)

    def allocate(self, capacity: Capacity) -> None:
        """Raises ValueError for sizes that no model has, MemoryError where the cache can't be had."""
        for name in ("num_blocks", "block_size", "step_tokens"):
            _check_size(name, getattr(capacity, name))
        sizes = capacity.num_blocks, capacity.block_size, capacity.step_tokens, capacity.max_sequences
        self._model.allocate(*sizes, capacity.local_blocks)
        self._num_rows = capacity.step_tokens

    def launch(self, plan: StepPlan) -> Pending:
        """Compute the step, greedy tokens included. Raises ValueError for rows or blocks out of range."""
        if plan.num_rows > self._num_rows:
            raise StepTooLarge(f"a step of {plan.num_rows} rows; there is room for {self._num_rows}")
        needs = int(plan.needs)
        outputs = needs & OUTPUTS
        keep_hidden = bool(outputs) or len(plan.pooled) > 0
        step = self._step
        if plan.inputs:
            for buffer, rows in zip(self._model.inputs(plan.num_rows), plan.inputs, strict=True):
                buffer[:] = rows
        self._model.step(step.of(plan), keep_hidden=keep_hidden, adapters=bool(needs & ADAPTERS))
        pending = _Launched(step.token_ids[: plan.num_draws].copy(), step.faults[: len(plan.slots)].copy())
        if plan.starts:
            self._sampler.start(plan.starts)
        if needs & SAMPLED:
            logits = torch.from_numpy(self._model.logits(plan.num_draws))
            pending.drawing = logits, plan.draws(), plan.draw_sequences
        if outputs:
            pending.outputs = tuple(rows.copy() for rows in self._model.outputs(plan.num_rows))
        if len(plan.pooled):
            hidden = torch.from_numpy(self._model.hidden(plan.num_rows))
            pooled, finite = pool(hidden, plan.row_starts, plan.pooled, plan.pool_kinds)
            pending.faults[plan.pooled[~finite.numpy()]] = Fault.NOT_FINITE
            pending.pooled = pooled.numpy()
        return pending

    def draw(self, pending: Pending, masks: Masks | None = None) -> None:
        """Tokens that are not greedy, by the host's sampler."""
        assert isinstance(pending, _Launched)
        if pending.drawing is None:
            return
        logits, draws, sequences = pending.drawing
        likeliest = Drawn(pending.token_ids, pending.faults[sequences] == Fault.NONE)
        drawn = self._sampler.draw(logits, replace(draws, masks=masks), likeliest)
        pending.token_ids, pending.logprobs, pending.drawing = drawn.token_ids, drawn.logprobs, None

    def collect(self, pending: Pending, timeout: float) -> StepOutput:
        """All is there."""
        assert isinstance(pending, _Launched)
        return StepOutput(pending.token_ids, pending.faults, pending.logprobs, pending.pooled, pending.outputs)

    def export_blocks(self, blocks: Sequence[int], local: Sequence[int] = ()) -> tuple[NDArray[Any], ...]:
        """Of each cache [2, tokens, kv heads, width], float16, or rows of codes."""
        return read_blocks(self._model, self._of_pools(blocks, local), self._latent)

    def import_blocks(self, blocks: Sequence[int], caches: Sequence[NDArray[Any]], local: Sequence[int] = ()) -> None:
        """Write what `export_blocks` gave; raises ValueError for other shapes."""
        shapes = [(2 - latent, *shape_of(self._model, len(blocks))) for latent in self._latent]
        if [each.shape for each in caches] != shapes:
            raise ValueError(f"{len(shapes)} caches of {shapes} are wanted, not {[each.shape for each in caches]}")
        write_blocks(self._model, self._of_pools(blocks, local), caches)

    def begin_import(self, blocks: Sequence[int], local: Sequence[int] = ()) -> BlockImport:
        """`import_blocks` on any thread: a step reads and writes its own blocks alone."""
        return BlockImport(lambda caches: self.import_blocks(blocks, caches, local))

    def _of_pools(self, blocks: Sequence[int], local: Sequence[int]) -> list[Sequence[int]]:
        """Of each cache the blocks of the pool that it is in."""
        return [local if cache in self._model.local else blocks for cache in range(len(self._latent))]

    def set_adapter(self, number: int, parts: Parts) -> None:
        """As codes where it changes weights that are codes, else in half precision. May raise MemoryError."""
        self._model.set_adapter(number, parts)

    def implementations(self) -> Mapping[str, str]:
        """What runs each op."""
        names = implementations(self.instruction_set, self._formats)
        return {kind: names[kind] for kind in self._kinds}

    def close(self) -> None:
        """Free memory and threads at once rather than with the last reference."""
        self._model.close()


def estimate(
    graph: KernelGraph,
    weights: Weights,
    step_tokens: int,
    block_size: int,
    *,
    adapters: bool = False,
    codes: bool = False,
) -> Footprint:
    """What a graph takes, from the headers of its weights alone; adapters' own matrices are not among it."""
    local = tuple(graph.caches[each] for each in graph.local_caches)
    _, widths = programs(graph, lambda name: weights[name].rows, adapters=adapters)
    return Footprint(
        weights=footprint.weight_bytes(graph, weights),
        kv_per_token=footprint.kv_bytes(graph, block_size, codes=codes),
        local_per_token=footprint.kv_bytes(replace(graph, caches=local), block_size, codes=codes),
        workspace=footprint.step_bytes(graph, weights, widths, step_tokens),
        state_per_sequence=graph.state_bytes,
    )


def choose_threads(wanted: int, root: Path = Path("/")) -> int:
    """As many as wanted, but no more than cores that this process may use; all of these for 0."""
    cores = usable_cores(root)
    if wanted > cores:
        log.warning("%d threads were asked for, %d cores may be used: taking %d", wanted, cores, cores)
    return min(wanted or cores, cores)


def choose_instruction_set(wanted: str) -> str:
    """The best that this machine runs for "auto"; raises ValueError for one that it does not run."""
    found = instruction_sets()
    if wanted == "auto":
        return found[0]
    if wanted not in found:
        raise ValueError(f"this processor does not run {wanted!r}: choose auto or one of {', '.join(found)}")
    return wanted


def _sizes(options: EngineOptions) -> tuple[int, int]:
    """Rows of a step and tokens of a block, as they were asked for or as sizing chooses them."""
    defaults = defaults_of(host=True, cores=usable_cores())
    rows = options.step_tokens or max(defaults.step_tokens, 2 * options.max_sequences)
    return rows, options.block_size or BLOCK_SIZE


def _check_size(name: str, value: int, least: int = 1) -> None:
    if not least <= value <= MAX_INT32:
        raise ValueError(f"{name} must be {least} to {MAX_INT32}, not {value}")
