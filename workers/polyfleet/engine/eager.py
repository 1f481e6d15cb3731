"""The eager executor: runs a KernelGraph op by op in torch, on any device. The reference and the fall-back."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polyfleet.engine.batch import PoolingKind, SequenceSlice, SliceResult, StepBatch
from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.lowering import fuse
from polyfleet.graph.ops import Op, without_cache
from polyfleet.kernels.batched import steady_attention
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.dispatch import Kernel, Target, choose
from polyfleet.kernels.step import SliceRows, Step
from polyfleet.kernels.table import implementations
from polyfleet.kvcache.storage import KvStorage
from polyfleet.loading.model import LoadedModel
from polyfleet.loading.progress import Progress, silent
from polyfleet.models.registry import record
from polyfleet.sampling.host import sample

NOT_FINITE = "the model's output is not finite; check the weights, or choose float32"


@dataclass(frozen=True, slots=True)
class _Instruction:
    """One op, bound. `plan` numbers what it shares with others; `dead` are values that no later one reads."""

    kernel: Kernel
    plan: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    dead: tuple[int, ...]


class EagerExecutor:
    """Weights are dequantised to `dtype` on `device` once, at construction; `step` then only launches kernels."""

    def __init__(
        self,
        model: LoadedModel,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        num_blocks: int,
        block_size: int = 16,
        capabilities: frozenset[str] = frozenset(),
        progress: Progress = silent,
    ) -> None:
        """`capabilities` are the device's facts that kernels may demand; `progress` follows the weights."""
        self.block_size = block_size
        self.num_blocks = num_blocks
        self._device = torch.device(device)
        self._graph = fuse(record(model.config, model.weights))
        self._storage = KvStorage.allocate(self._graph.caches, num_blocks, block_size, dtype, self._device)
        keys, values = self._storage.keys, self._storage.values
        self._context = KernelContext(model.weights, self._device, dtype, keys, values, block_size)
        self._plans: list[Op] = []  # the first op of each plan
        self._chosen = choose(implementations(), Target(self._device.type, dtype, capabilities))
        with torch.inference_mode():
            self._program = self._bind(self._graph, progress)

    def implementations(self) -> Mapping[str, str]:
        """The name of the implementation of each op."""
        return {op.kind.value: self._chosen[op.kind].name for op in self._graph.ops}

    def step(self, batch: StepBatch) -> tuple[SliceResult, ...]:
        """Compute one step; results are parallel to the slices."""
        with torch.inference_mode(), steady_attention():
            return self._step(batch)

    def _step(self, batch: StepBatch) -> tuple[SliceResult, ...]:
        step = make_step(batch, self.block_size, self._device)
        hidden, logits = self._run(step)
        draws = [each.draw for each in batch.slices if each.draw is not None]
        tokens = iter(sample(logits, draws))
        results = []
        for each, rows in zip(batch.slices, step.slices, strict=True):
            token = next(tokens) if each.draw is not None else None
            pooled = _pool(hidden[rows.first : rows.first + rows.count], each.pooling)
            if (each.draw is not None and token is None) or pooled is None:
                self._storage.make_finite(rows.blocks)
                results.append(SliceResult(error=NOT_FINITE))
            else:
                results.append(SliceResult(token, pooled))
        return tuple(results)

    def _run(self, step: Step) -> tuple[Tensor, Tensor]:
        """Final hidden states [T, H] and logits [S, V]."""
        plans = [self._chosen[op.kind].plan(self._context, step, op.attributes) for op in self._plans]
        values: list[Any] = [None] * len(self._graph.widths)
        values[0] = step.token_ids
        for each in self._program:
            result = each.kernel(plans[each.plan], *[values[value] for value in each.inputs])
            if len(each.outputs) == 1:
                values[each.outputs[0]] = result
            else:
                for value, tensor in zip(each.outputs, result, strict=True):
                    values[value] = tensor
            for value in each.dead:
                values[value] = None
        return values[self._graph.hidden], values[self._graph.logits]

    def _bind(self, graph: KernelGraph, progress: Progress) -> tuple[_Instruction, ...]:
        last_reader = {value: number for number, op in enumerate(graph.ops) for value in op.inputs}
        del last_reader[graph.hidden]
        instructions = []
        for number, op in enumerate(graph.ops):
            kernel = self._chosen[op.kind].bind(op, self._context)
            dead = tuple(value for value in set(op.inputs) if last_reader.get(value) == number)
            instructions.append(_Instruction(kernel, self._plan_of(op), op.inputs, op.outputs, dead))
            progress((number + 1) / len(graph.ops))
        return tuple(instructions)

    def _plan_of(self, op: Op) -> int:
        """The plan that `op` shares with all of its kind whose attributes differ in nothing but the cache."""
        for number, first in enumerate(self._plans):
            if first.kind is op.kind and without_cache(first) == without_cache(op):
                return number
        self._plans.append(op)
        return len(self._plans) - 1


def make_step(batch: StepBatch, block_size: int, device: torch.device) -> Step:
    """The kernels' view of a batch."""
    slices: list[SliceRows] = []
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    selected: list[int] = []
    for each in batch.slices:
        mine = _rows(each, len(token_ids), block_size)
        slices.append(mine)
        token_ids.extend(each.token_ids)
        span = range(mine.start, mine.length)
        positions.extend(span)
        slots.extend(mine.blocks[position // block_size] * block_size + position % block_size for position in span)
        if each.draw is not None:
            selected.append(len(token_ids) - 1)
    lists = (token_ids, positions, slots, selected)
    ids, places, targets, rows = (torch.tensor(values, dtype=torch.int64, device=device) for values in lists)
    return Step(ids, places, targets, rows, tuple(slices))


def _rows(each: SequenceSlice, first: int, block_size: int) -> SliceRows:
    num_blocks = -(-(each.start + len(each.token_ids)) // block_size)
    return SliceRows(first, len(each.token_ids), each.start, tuple(each.block_table[:num_blocks]))


def _pool(hidden: Tensor, pooling: PoolingKind | None) -> tuple[float, ...] | None:
    """Pooled hidden states [rows, H]; empty when unwanted, None when not finite."""
    if pooling is None:
        return ()
    rows = hidden.float()
    pooled = rows.sum(dim=0) if pooling is PoolingKind.MEAN else rows[-1]
    return tuple(pooled.tolist()) if bool(pooled.isfinite().all()) else None
