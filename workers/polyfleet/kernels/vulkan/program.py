"""A KernelGraph laid out on a Vulkan device: one buffer a value, one dispatch an op, bound once and run every step."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from polyfleet.kernels.graph import KernelGraph, Op, OpKind
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
        if graph.params.head_dim > MAX_HEAD_DIM:
            raise VulkanError(f"heads of {graph.params.head_dim} dimensions are too wide: {MAX_HEAD_DIM} at most")
        self.device, self.graph, self.block_size = device, graph, block_size
        self._weights = {op.weights: self._upload(op.weights, weights) for op in graph.ops if op.weights}
        self._row_counts = {op.weights: sum(weights[name].rows for name in op.weights) for op in graph.ops}
        self._biases = {op.biases: self._upload(op.biases, weights) for op in graph.ops if op.biases}
        params = graph.params
        size = num_blocks * params.num_kv_heads * block_size * params.head_dim * FLOAT_BYTES
        layers = range(params.num_layers)
        self._caches = [(device.buffer(size, "the key cache"), device.buffer(size, "the value cache")) for _ in layers]
        self._frequencies = device.buffer(params.head_dim // 2 * FLOAT_BYTES, "the rope frequencies")
        device.write(self._frequencies, np.asarray(params.inverse_frequencies, dtype=np.float32))
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

    def _selected_values(self) -> set[int]:
        found: set[int] = set()
        for op in self.graph.ops:
            if op.kind is OpKind.SELECT_ROWS or set(op.inputs) & found:
                found |= set(op.outputs)
        return found

    def _dispatch(self, op: Op, selected: bool) -> Dispatch:
        inputs = [self.values[value] for value in op.inputs]
        outputs = [self.values[value] for value in op.outputs]
        columns, params = self.graph.widths[op.outputs[0]], self.graph.params
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
            norm = {"COLUMNS": columns, "EPS": params.norm_eps}
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
        return self._cache_dispatch(op, inputs[0], outputs[0])

    def _cache_dispatch(self, op: Op, value: Any, output: Any) -> Dispatch:
        params, step = self.graph.params, self._inputs
        keys, values = self._caches[op.layer]
        shape: dict[str, float] = {
            "HEADS": params.num_heads,
            "KV_HEADS": params.num_kv_heads,
            "DIMENSIONS": params.head_dim,
            "BLOCK_SIZE": self.block_size,
        }
        if op.kind is OpKind.ROPE_CACHE:
            width = _groups((params.num_heads + 2 * params.num_kv_heads) * params.head_dim // 2)
            buffers = (value, step["positions"], step["slots"], self._frequencies, keys, values, output)
            return self._bound(op.kind.value, shape, width, 1, False, *buffers)
        shape["SCALE"] = params.attention_scale
        rows = (value, step["positions"], step["sequences"], step["tables"])
        return self._bound(op.kind.value, shape, params.num_heads, 1, False, *rows, keys, values, output, self._table)

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
