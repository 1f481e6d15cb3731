"""PersistentKernel: an Executor that runs a whole step of a KernelGraph in one call, with no Python between ops."""

import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from polyfleet.backends.cpu import usable_cores
from polyfleet.engine.batch import PoolingKind, SliceResult, StepBatch
from polyfleet.engine.eager import NOT_FINITE
from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.kernels.cpu.engine import CpuEngine, StepRows, implementations, linear_formats
from polyfleet.kernels.cpu.library import instruction_sets
from polyfleet.kernels.weights import Weights
from polyfleet.sampling.draw import SampledToken
from polyfleet.sampling.host import sample

log = logging.getLogger(__name__)

BACKENDS = ("cpu",)
MAX_INT32 = 2**31 - 1  # sizes cross the C ABI as int32


class PersistentKernel:
    """The Executor of a KernelGraph on one backend; on the CPU it is the C++ engine of `polyfleet.kernels.cpu`.

    Rows enter quantised weights as int8 in blocks of 32, the KV cache is float16, everything else is float32.
    """

    def __init__(
        self,
        graph: KernelGraph,
        backend: str = "cpu",
        *,
        weights: Weights,
        num_blocks: int,
        block_size: int = 16,
        threads: int = 0,
        instruction_set: str = "auto",
        reproducible: bool = False,
    ) -> None:
        """`threads` 0 takes all cores that may be used; more than these are not taken, with a warning.

        Raises ValueError for what can't be run or chosen, LibraryUnavailable without the library.
        """
        if backend not in BACKENDS:
            raise ValueError(f"there is no persistent kernel for {backend!r}: choose one of {', '.join(BACKENDS)}")
        sizes = (("num_blocks", num_blocks, 1), ("block_size", block_size, 1), ("threads", threads, 0))
        for name, value, least in sizes:
            if not least <= value <= MAX_INT32:
                raise ValueError(f"{name} must be {least} to {MAX_INT32}, not {value}")
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.instruction_set = choose_instruction_set(instruction_set)
        self.threads = choose_threads(threads)
        self._formats = linear_formats(graph, weights)
        self._engine = CpuEngine(
            graph,
            weights,
            num_blocks=num_blocks,
            block_size=block_size,
            threads=self.threads,
            instruction_set=self.instruction_set,
            wide=not reproducible,
        )

    def implementations(self) -> Mapping[str, str]:
        """What runs each op."""
        return implementations(self.instruction_set, self._formats)

    def step(self, batch: StepBatch) -> tuple[SliceResult, ...]:
        """Compute one step; results are parallel to the slices. Raises ValueError for a slice out of range."""
        rows = step_rows(batch, self.block_size)
        draws = [each.draw for each in batch.slices if each.draw is not None]
        keep_hidden = any(each.pooling is not None for each in batch.slices)
        greedy = all(draw.params.greedy and not draw.params.penalised and draw.num_logprobs is None for draw in draws)
        ids = self._engine.step(rows, keep_hidden=keep_hidden, greedy=greedy)
        if greedy:
            tokens = iter([SampledToken(token_id) if token_id >= 0 else None for token_id in ids])
        else:
            tokens = iter(sample(torch.from_numpy(self._engine.logits(len(draws), keep_hidden=keep_hidden)), draws))
        hidden = self._engine.hidden(batch.num_tokens) if keep_hidden else None
        results = []
        for number, each in enumerate(batch.slices):
            token = next(tokens) if each.draw is not None else None
            first, last = rows.slice_rows[number], rows.slice_rows[number + 1]
            pooled = pool(hidden[first:last], each.pooling) if hidden is not None and each.pooling else ()
            failed = (each.draw is not None and token is None) or pooled is None
            results.append(SliceResult(error=NOT_FINITE) if failed or pooled is None else SliceResult(token, pooled))
        return tuple(results)

    def close(self) -> None:
        """Free memory and threads at once rather than with the last reference."""
        self._engine.close()


def pool(rows: NDArray[np.float32], kind: PoolingKind) -> tuple[float, ...] | None:
    """Pooled hidden states [rows, H] as SliceResult defines them; None when not finite."""
    pooled = rows.sum(axis=0, dtype=np.float64) if kind is PoolingKind.MEAN else rows[-1]
    return tuple(pooled.tolist()) if bool(np.isfinite(pooled).all()) else None


def step_rows(batch: StepBatch, block_size: int) -> StepRows:
    """The engine's view of a batch; block tables are cut to the blocks that a slice reads."""
    token_ids: list[int] = []
    tables: list[int] = []
    slice_rows, offsets, selected = [0], [], []
    for each in batch.slices:
        token_ids.extend(each.token_ids)
        slice_rows.append(len(token_ids))
        offsets.append(len(tables))
        tables.extend(each.block_table[: -(-(each.start + len(each.token_ids)) // block_size)])
        if each.draw is not None:
            selected.append(len(token_ids) - 1)
    starts = [each.start for each in batch.slices]
    return StepRows(token_ids, slice_rows, starts, offsets, tables, selected)


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
