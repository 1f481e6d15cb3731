"""A whole executor in numpy, the smallest that works: an example for who writes one, and a reference in float64.

It runs a KernelGraph as it was recorded, sequence by sequence, and keeps keys and values in arrays
[num_blocks, heads, block_size, width].
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from polyfleet.engine.choosing.executors import Workload
from polyfleet.engine.executor import Capacity, Fault, Footprint, Pending, StepOutput
from polyfleet.engine.step.plan import StepPlan
from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import Attention, CacheWrite, Norm, Op, OpKind, Rope, of
from polyfleet.kernels.weights.quantisation import dequantise
from polyfleet.kernels.weights.weight import Weights
from polyfleet.loading.progress import Progress
from polyfleet.sampling.draw import Drawn, Draws
from polyfleet.sampling.host import HostSampler
from polyfleet.sampling.masks import Masks

Array = NDArray[np.float64]
ELEMENTWISE: Mapping[OpKind, Callable[..., Array]] = {
    OpKind.ADD: np.add,
    OpKind.MUL: np.multiply,
    OpKind.SILU: lambda x: x / (1 + np.exp(-x)),
    OpKind.RELU: lambda x: np.maximum(x, 0),
    OpKind.GELU: lambda x: x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    OpKind.GELU_TANH: lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}


@dataclass(slots=True)
class NumpyStep(Pending):
    """A step that was computed; what is left to do is to draw."""

    outputs: tuple[Array, ...]  # of the graph: of a model hidden states [T, H] and logits [S, V]
    draws: Draws
    row_starts: list[int]
    draw_sequences: NDArray[np.int64]
    pooled: list[tuple[int, bool]]  # which sequence, and whether its last row
    drawn: Drawn | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """One sequence's rows of a step."""

    first: int
    end: int
    start: int  # position of the first
    blocks: NDArray[np.int32]  # of all positions up to its last

    @property
    def length(self) -> int:
        """Positions that are valid behind the step."""
        return self.start + self.end - self.first


class NumpyExecutor:
    """See `polyfleet.engine.executor.Executor`."""

    name = "numpy"
    dtype = "float32"
    depth = 1

    def __init__(self, graph: KernelGraph, weights: Weights) -> None:
        host = torch.device("cpu")
        names = {name for op in graph.ops for name in (*op.weights, *op.biases)}
        self._graph = graph
        self._weights = {name: dequantise(weights[name], torch.float32, host).double().numpy() for name in names}
        self._sampler = HostSampler()

    @classmethod
    def refuses(cls, workload: Workload) -> str:
        """It runs every op that models record."""
        return ""

    @classmethod
    def footprint(cls, workload: Workload) -> Footprint:
        """Everything in float64."""
        weights = sum(8 * each.rows * each.columns for each in workload.weights.values())
        return Footprint(weights, sum(2 * 8 * each.heads * each.width for each in workload.graph.caches))

    @classmethod
    def build(cls, workload: Workload, progress: Progress) -> "NumpyExecutor":
        """Dequantise the weights."""
        progress(1.0)
        return cls(workload.graph, workload.weights)

    def measure(self) -> Footprint:
        """What the arrays take."""
        held = sum(each.nbytes for each in self._weights.values())
        return Footprint(held, sum(2 * 8 * each.heads * each.width for each in self._graph.caches))

    def allocate(self, capacity: Capacity) -> None:
        """Zeroed caches."""
        self._block_size = capacity.block_size
        self._caches = [
            np.zeros((2, capacity.num_blocks, each.heads, capacity.block_size, each.width))
            for each in self._graph.caches
        ]

    def launch(self, plan: StepPlan) -> NumpyStep:
        """Compute the step."""
        for cache in self._caches:
            cache[:, plan.cleared_blocks] = 0.0
        self._sampler.start(plan.starts)
        rows = []
        for slot, first, end, length in zip(
            plan.slots, plan.row_starts[:-1], plan.row_starts[1:], plan.lengths, strict=True
        ):
            blocks = plan.block_tables[slot, : -(-length // self._block_size)].copy()
            rows.append(Rows(int(first), int(end), int(length - (end - first)), blocks))
        values: dict[int, Any] = {0: plan.token_ids.copy()}
        values |= {value: given.astype(float) for value, given in zip(self._graph.inputs, plan.inputs, strict=True)}
        with np.errstate(all="ignore"):  # what is not finite is found behind
            for op in self._graph.ops:
                self._run(op, values, plan.positions, rows, plan.draw_rows)
        pooled = [(int(at), bool(last)) for at, last in zip(plan.pooled, plan.pool_kinds, strict=True)]
        outputs = tuple(values[value] for value in self._graph.outputs)
        return NumpyStep(outputs, plan.draws(), plan.row_starts.tolist(), plan.draw_sequences, pooled)

    def draw(self, pending: Pending, masks: Masks | None = None) -> None:
        """Draw on the host."""
        assert isinstance(pending, NumpyStep)
        asked = pending.draws
        draws = Draws(asked.parameters, asked.slots, asked.positions, masks)
        logits = torch.from_numpy(pending.outputs[-1][: len(asked)]).float()
        pending.drawn = self._sampler.draw(logits, draws)

    def collect(self, pending: Pending, timeout: float) -> StepOutput:
        """What was computed."""
        assert isinstance(pending, NumpyStep)
        assert pending.drawn is not None
        ends = pending.row_starts
        hidden = pending.outputs[0]
        finite = np.isfinite(hidden).min(axis=1)
        good = np.array([finite[first:end].all() for first, end in pairwise(ends)])
        good[pending.draw_sequences] &= pending.drawn.finite
        pooled = [
            hidden[ends[at + 1] - 1] if last else hidden[ends[at] : ends[at + 1]].sum(axis=0)
            for at, last in pending.pooled
        ]
        faults = np.where(good, Fault.NONE, Fault.NOT_FINITE).astype(np.int8)
        drawn = pending.drawn
        values = np.stack(pooled) if pooled else None
        return StepOutput(drawn.token_ids, faults, drawn.logprobs, values, pending.outputs)

    def export_blocks(self, blocks: Sequence[int]) -> tuple[NDArray[Any], ...]:
        """Of each cache [2, tokens, heads, width], in float32: the portable layout has no float64."""
        taken = (cache[:, list(blocks)].transpose(0, 1, 3, 2, 4).astype(np.float32) for cache in self._caches)
        return tuple(each.reshape(2, -1, *each.shape[3:]) for each in taken)

    def import_blocks(self, blocks: Sequence[int], caches: Sequence[NDArray[Any]]) -> None:
        """The reverse."""
        for cache, given in zip(self._caches, caches, strict=True):
            shaped = given.reshape(2, len(blocks), self._block_size, *given.shape[2:])
            cache[:, list(blocks)] = shaped.transpose(0, 1, 3, 2, 4)

    def implementations(self) -> Mapping[str, str]:
        """Every op is numpy's."""
        return {op.kind.value: "numpy" for op in self._graph.ops}

    def close(self) -> None:
        """Let go of everything."""
        self._weights, self._caches = {}, []

    def _run(
        self,
        op: Op,
        values: dict[int, Any],
        positions: NDArray[np.int32],
        rows: list[Rows],
        selected: NDArray[np.int32],
    ) -> None:
        inputs, weights = [values[each] for each in op.inputs], [self._weights[name] for name in op.weights]
        if op.kind in ELEMENTWISE:
            result = ELEMENTWISE[op.kind](*inputs)
        elif op.kind is OpKind.EMBEDDING:
            result = weights[0][inputs[0]]
        elif op.kind is OpKind.RMS_NORM:
            x, eps = inputs[0], of(op, Norm).eps
            result = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weights[0]
        elif op.kind is OpKind.LINEAR:
            result = inputs[0] @ np.concatenate(weights).T
            result = (
                result + np.concatenate([self._weights[name].ravel() for name in op.biases]) if op.biases else result
            )
        elif op.kind is OpKind.LAYER_NORM:
            x, eps = inputs[0], of(op, Norm).eps
            x = (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + eps)
            result = x * weights[0] + (self._weights[op.biases[0]] if op.biases else 0)
        elif op.kind is OpKind.ARGMAX:
            result = inputs[0].argmax(axis=-1, keepdims=True)
        elif op.kind is OpKind.ROPE:
            result = _rotated(inputs[0], positions, of(op, Rope))
        elif op.kind is OpKind.SELECT_ROWS:
            result = inputs[0][selected]
        elif op.kind is OpKind.CACHE_WRITE:
            self._write(of(op, CacheWrite).cache, inputs[0], inputs[1], rows)
            return
        elif op.kind is OpKind.PAGED_ATTENTION:
            result = self._attend(of(op, Attention), inputs[0], rows)
        else:
            raise ValueError(f"there is no {op.kind.value} in numpy")
        values[op.outputs[0]] = result

    def _write(self, cache: int, keys: Array, values: Array, rows: list[Rows]) -> None:
        held = self._caches[cache]
        for each in rows:
            at = np.arange(each.start, each.length)
            blocks, offsets = each.blocks[at // self._block_size], at % self._block_size
            for side, given in enumerate((keys, values)):
                held[side, blocks, :, offsets] = given[each.first : each.end].reshape(len(at), *held.shape[2::2])

    def _attend(self, attention: Attention, queries: Array, rows: list[Rows]) -> Array:
        out = np.empty_like(queries)
        heads, kv_heads, width = attention.heads, attention.kv_heads, attention.width
        for each in rows:
            keys, values = (
                side[each.blocks].transpose(1, 0, 2, 3).reshape(kv_heads, -1, width)[:, : each.length]
                for side in self._caches[attention.cache]
            )
            q = queries[each.first : each.end].reshape(-1, kv_heads, heads // kv_heads, width)
            scores = np.einsum("tkgd,kld->kgtl", q, keys) * attention.scale
            hidden = np.arange(each.length) > np.arange(each.start, each.length)[:, None]
            scores = np.where(hidden, -np.inf, scores)
            shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
            shares /= shares.sum(axis=-1, keepdims=True)
            out[each.first : each.end] = np.einsum("kgtl,kld->tkgd", shares, values).reshape(each.end - each.first, -1)
        return out


def _rotated(x: Array, positions: NDArray[np.int32], rope: Rope) -> Array:
    angles = positions[:, None, None] * np.array(rope.frequencies)
    first, second = np.split(x.reshape(len(x), -1, rope.width), 2, axis=-1)
    cosine, sine = np.cos(angles), np.sin(angles)
    return np.concatenate((first * cosine - second * sine, second * cosine + first * sine), axis=-1).reshape(x.shape)
