"""A KernelGraph laid out on a Vulkan device: one buffer a value, one dispatch an op, bound once and run every step."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import Attention, Norm, Op, OpKind, Rope, RopeCache, of
from polyfleet.kernels.quantisation import dequantise
from polyfleet.kernels.vulkan.device import WORKGROUP, Dispatch, VulkanDevice, VulkanError
from polyfleet.kernels.weights import Weights

FLOAT_BYTES = 4
LINEAR_ROWS = 4  # rows that one invocation of the linear shader computes
MAX_HEAD_DIM = 256


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What a step's kernels read beside values: uint32 arrays on the host, uploaded at each step."""

    ids: "np.ndarray[tuple[int], np.dtype[np.uint32]]"  # [T]
    positions: "np.ndarray[tuple[int], np.dtype[np.uint32]]"  # [T]
    slots: "np.ndarray[tuple[int], np.dtype[np.uint32]]"  # [T]
    sequences: "np.ndarray[tuple[int], np.dtype[np.uint32]]"  # [T] row of `tables`
    tables: "np.ndarray[tuple[int, int], np.dtype[np.uint32]]"  # [sequences, width] block ids
    selected: "np.ndarray[tuple[int], np.dtype[np.uint32]]"  # [S]


class VulkanProgram:
    """Weights, KV cache and dispatches of one model. `rows` and `sequences` bound a step; `reserve` raises them."""

    def __init__(
        self, device: VulkanDevice, graph: KernelGraph, weights: Weights, num_blocks: int, block_size: int
    ) -> None:
        """Uploads all weights as float32; raises VulkanError for a model that the device can't hold."""
        widest = max((each.width for each in graph.caches), default=0)
        if widest > MAX_HEAD_DIM:
            raise VulkanError(f"heads of {widest} dimensions are too wide: {MAX_HEAD_DIM} at most")
        self.device, self.graph, self.block_size = device, graph, block_size
        self._weights = {op.weights: self._upload(op.weights, weights) for op in graph.ops if op.weights}
        self._row_counts = {op.weights: sum(weights[name].rows for name in op.weights) for op in graph.ops}
        self._biases = {op.biases: self._upload(op.biases, weights) for op in graph.ops if op.biases}
        sizes = [num_blocks * each.heads * block_size * each.width * FLOAT_BYTES for each in graph.caches]
        names = ("the key cache", "the value cache")
        self._caches = [tuple(device.buffer(size, name) for name in names) for size in sizes]
        ropes = {of(op, RopeCache).rope for op in graph.ops if op.kind is OpKind.ROPE_CACHE}
        self._frequencies = {rope: self._upload_frequencies(rope) for rope in ropes}
        self._rows, self._selected, self._table = (device.uniform() for _ in range(3))
        self._no_bias = device.buffer(FLOAT_BYTES, "an absent bias")
        self.rows = self.sequences = self.table_width = 0
        self.reserve(1, 1, 1)

    def reserve(self, rows: int, sequences: int, table_width: int) -> None:
        """Make room for steps of so many rows, sequences and blocks a sequence; grows by doubling."""
        if rows <= self.rows and sequences <= self.sequences and table_width <= self.table_width:
            return
        self.rows, self.sequences = _grown(self.rows, rows), _grown(self.sequences, sequences)
        self.table_width = _grown(self.table_width, table_width)
        buffer = self.device.buffer
        self._inputs = {
            name: buffer(self.rows * 4, f"the step's {name}") for name in ("ids", "positions", "slots", "sequences")
        }
        self._inputs["selected"] = buffer(self.sequences * 4, "the selected rows")
        self._inputs["tables"] = buffer(self.sequences * self.table_width * 4, "the block tables")
        self.best = buffer(self.sequences * 4, "the drawn tokens")
        selected = self._selected_values()
        self.values = [self._inputs["ids"]] + [
            buffer((self.sequences if value in selected else self.rows) * width * FLOAT_BYTES, f"value {value}")
            for value, width in enumerate(self.graph.widths)
            if value > 0
        ]
        self._dispatches = [self._dispatch(op, op.inputs[0] in selected) for op in self.graph.ops]
        self._argmax = self._bound(
            "argmax", {"COLUMNS": self.graph.widths[self.graph.logits]}, 1, 1, True, self.graph_logits, self.best
        )

    @property
    def graph_logits(self) -> Any:
        """The buffer of logits [S, vocabulary]."""
        return self.values[self.graph.logits]

    def run(self, step: StepInputs) -> None:
        """Upload the step's inputs, run every op, and find each selected row's likeliest token."""
        self.reserve(len(step.ids), max(1, len(step.tables)), step.tables.shape[1])
        for name in ("ids", "positions", "slots", "sequences", "selected"):
            if len(values := getattr(step, name)):
                self.device.write(self._inputs[name], values)
        self.device.write(self._inputs["tables"], np.ascontiguousarray(step.tables))
        for uniform, number in (
            (self._rows, len(step.ids)),
            (self._selected, len(step.selected)),
            (self._table, step.tables.shape[1]),
        ):
            self.device.write(uniform, np.asarray([number, 0, 0, 0], dtype=np.uint32))
        self.device.submit([*self._dispatches, self._argmax], len(step.ids), len(step.selected))

    def read_floats(self, value: int, rows: int) -> torch.Tensor:
        """Rows of a value, copied to the host: [rows, width] float32."""
        width = self.graph.widths[value]
        view = self.device.read(self.values[value], rows * width * FLOAT_BYTES)
        return torch.frombuffer(bytearray(view), dtype=torch.float32).view(rows, width)

    def read_best(self, selected: int) -> list[int]:
        """The likeliest token of each selected row; 0xFFFFFFFF where a logit is not finite."""
        return list(self.device.read(self.best, selected * 4).cast("B").cast("I"))

    def _upload(self, names: tuple[str, ...], weights: Weights) -> Any:
        """Vectors side by side, or matrices stacked by rows as [columns / 4, rows, 4] (see linear.wgsl)."""
        parts = [dequantise(weights[name], torch.float32, torch.device("cpu")) for name in names]
        vectors = all(weights[name].rows == 1 for name in names)
        dense = torch.cat([part.flatten() for part in parts] if vectors else parts)
        if not vectors:
            if dense.shape[1] % 16:
                raise VulkanError(f"{names[0]} has {dense.shape[1]} columns, which is no multiple of 16")
            dense = dense.view(len(dense), -1, 4).transpose(0, 1)
        buffer = self.device.buffer(dense.numel() * FLOAT_BYTES, " and ".join(names))
        self.device.write(buffer, dense.contiguous().numpy())
        return buffer

    def _upload_frequencies(self, rope: Rope) -> Any:
        buffer = self.device.buffer(len(rope.frequencies) * FLOAT_BYTES, "the rope frequencies")
        self.device.write(buffer, np.asarray(rope.frequencies, dtype=np.float32))
        return buffer

    def _selected_values(self) -> set[int]:
        found: set[int] = set()
        for op in self.graph.ops:
            if op.kind is OpKind.SELECT_ROWS or set(op.inputs) & found:
                found |= set(op.outputs)
        return found

    def _dispatch(self, op: Op, selected: bool) -> Dispatch:
        inputs = [self.values[value] for value in op.inputs]
        outputs = [self.values[value] for value in op.outputs]
        columns = self.graph.widths[op.outputs[0]]
        shader, step = op.kind.value, self._inputs
        if op.kind is OpKind.LINEAR:
            inner = self.graph.widths[op.inputs[0]]
            constants = {"COLUMNS": inner, "OUTPUTS": columns, "BIASED": bool(op.biases)}
            bias = self._biases[op.biases] if op.biases else self._no_bias
            count = self._selected if selected else self._rows
            buffers = (*inputs, self._weights[op.weights], bias, *outputs)
            few = self._bound("linear_row", constants, _groups(columns), 1, selected, *buffers)
            many = self._bound(shader, constants, _groups(columns), LINEAR_ROWS, selected, *buffers, count)
            return replace(many, few=few)
        if op.kind in (OpKind.RMS_NORM, OpKind.ADD_RMS_NORM):
            norm = {"COLUMNS": columns, "EPS": of(op, Norm).eps}
            return self._bound(shader, norm, 1, 1, selected, *inputs, self._weights[op.weights], *outputs)
        if op.kind is OpKind.EMBEDDING:
            buffers = (*inputs, self._weights[op.weights], *outputs)
            table = {"COLUMNS": columns, "ROWS": self._row_counts[op.weights]}
            return self._bound(shader, table, _groups(columns), 1, selected, *buffers)
        if op.kind is OpKind.SELECT_ROWS:
            rows = (*inputs, step["selected"], *outputs)
            return self._bound(shader, {"COLUMNS": columns}, _groups(columns), 1, True, *rows)
        if op.kind is OpKind.SILU_MUL:
            return self._bound(shader, {"COLUMNS": columns}, _groups(columns), 1, selected, *inputs, *outputs)
        if op.kind is OpKind.ROPE_CACHE:
            return self._rope_cache(of(op, RopeCache), inputs[0], outputs[0])
        return self._attention(of(op, Attention), inputs[0], outputs[0])

    def _rope_cache(self, both: RopeCache, value: Any, output: Any) -> Dispatch:
        step, (keys, values) = self._inputs, self._caches[both.cache]
        shape = self._heads(both.heads, both.kv_heads, both.rope.width)
        width = _groups((both.heads + 2 * both.kv_heads) * both.rope.width // 2)
        buffers = (value, step["positions"], step["slots"], self._frequencies[both.rope], keys, values, output)
        return self._bound("rope_cache", shape, width, 1, False, *buffers)

    def _attention(self, attention: Attention, value: Any, output: Any) -> Dispatch:
        step, (keys, values) = self._inputs, self._caches[attention.cache]
        shape = self._heads(attention.heads, attention.kv_heads, attention.width) | {"SCALE": attention.scale}
        rows = (value, step["positions"], step["sequences"], step["tables"], keys, values, output, self._table)
        return self._bound("paged_attention", shape, attention.heads, 1, False, *rows)

    def _heads(self, heads: int, kv_heads: int, width: int) -> dict[str, float]:
        return {"HEADS": heads, "KV_HEADS": kv_heads, "DIMENSIONS": width, "BLOCK_SIZE": self.block_size}

    def _bound(
        self, shader: str, constants: Mapping[str, float], width: int, rows: int, selected: bool, *buffers: Any
    ) -> Dispatch:
        pipeline = self.device.pipeline(shader, constants)
        return Dispatch(pipeline, self.device.bind(pipeline, buffers), width, rows, selected)


def _groups(invocations: int) -> int:
    return -(-invocations // WORKGROUP)


def _grown(now: int, wanted: int) -> int:
    size = max(1, now)
    while size < wanted:
        size *= 2
    return size
