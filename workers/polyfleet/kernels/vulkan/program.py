"""A KernelGraph laid out on a Vulkan device: one buffer a value, one dispatch an op, bound once and run every step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import Attention, Lookup, Norm, Op, OpKind, Rope, RopeCache, of
from polyfleet.kernels.vulkan.buffers import FLOAT_BYTES, selected_values, share_buffers
from polyfleet.kernels.vulkan.device import WORKGROUP, Dispatch, VulkanDevice
from polyfleet.kernels.weights.quantisation import dequantise
from polyfleet.kernels.weights.weight import Weights

LINEAR_ROWS = 4  # rows that one invocation of the linear shader computes
MAX_HEAD_DIM = 256
NOT_FINITE = 0xFFFFFFFF  # in the place of a token
SHADERS = frozenset(
    {
        *(OpKind.EMBEDDING, OpKind.RMS_NORM, OpKind.ADD_RMS_NORM, OpKind.LINEAR, OpKind.ROPE_CACHE),
        *(OpKind.PAGED_ATTENTION, OpKind.SELECT_ROWS, OpKind.SILU_MUL, OpKind.LAYER_NORM, OpKind.ARGMAX),
        *(OpKind.ADD, OpKind.MUL, OpKind.SILU, OpKind.RELU, OpKind.GELU, OpKind.GELU_TANH),
    }
)
ELEMENTWISE = (OpKind.ADD, OpKind.MUL, OpKind.SILU, OpKind.RELU, OpKind.GELU, OpKind.GELU_TANH)  # as elementwise.wgsl

Uint32s = NDArray[np.uint32]
Int32s = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What a step's shaders read beside values; copied before `run` returns."""

    ids: Int32s  # [T]
    positions: Int32s  # [T]
    slots: Int32s  # [T] rows of the block tables
    selected: Int32s  # [S] rows whose logits are wanted
    tables: Int32s  # [n, blocks of a sequence at most] rows of the block tables that may have changed, and
    first_table: int  # which is the first of them
    cleared_blocks: Sequence[int]
    inputs: Sequence[NDArray[np.float32]] = ()  # of the graph [T, width]


def refusal(graph: KernelGraph, weights: Weights) -> str:
    """Why the shaders can't compute a fused graph, in one sentence, from headers alone; "" where they can."""
    for op in graph.ops:
        if op.kind not in SHADERS or not _plain(op):
            return f"there is no Vulkan shader for {op.kind.value} as this model uses it"
    widest = max((each.width for each in graph.caches), default=0)
    if widest > MAX_HEAD_DIM:
        return f"heads of {widest} dimensions are too wide for the Vulkan shaders: {MAX_HEAD_DIM} at most"
    for kind, name in ((op.kind, name) for op in graph.ops for name in op.weights):
        matrix = kind is OpKind.LINEAR or weights[name].rows > 1
        if matrix and weights[name].columns % 16:
            return f"{name} has {weights[name].columns} columns, which is no multiple of 16, as the Vulkan shaders need"
    return ""


def _plain(op: Op) -> bool:
    """Whether the op has nothing that its shader does not know: norms of heads, amplitudes, windows, caps, lookups."""
    match op.attributes:
        case Norm():
            return not op.attributes.width
        case RopeCache():
            return not op.weights and op.attributes.rope.amplitude == 1
        case Attention() as how:
            return how.causal and not (how.window or how.soft_cap or how.sinks)
        case Lookup():
            return False
    return True


class VulkanProgram:
    """Weights, KV cache and dispatches of one model; `allocate` comes before the first `run`."""

    def __init__(
        self, device: VulkanDevice, graph: KernelGraph, weights: Weights, progress: Callable[[float], None]
    ) -> None:
        """Uploads all weights as float32; raises VulkanError for a model that the device can't hold."""
        self.device, self.graph = device, graph
        names = {names: None for op in graph.ops for names in (op.weights, op.biases) if names}
        self._weights: dict[tuple[str, ...], Any] = {}
        for number, each in enumerate(names):
            self._weights[each] = self._upload(each, weights)
            progress((number + 1) / len(names))
        self._row_counts = {op.weights: sum(weights[name].rows for name in op.weights) for op in graph.ops}
        ropes = {of(op, RopeCache).rope for op in graph.ops if op.kind is OpKind.ROPE_CACHE}
        self._frequencies = {rope: self._upload_frequencies(rope) for rope in ropes}
        self._num_rows, self._num_selected = device.uniform(), device.uniform()
        self._no_bias = device.buffer(FLOAT_BYTES, "an absent bias")

    @property
    def weight_bytes(self) -> int:
        """What the weights take on the device."""
        return sum(buffer.size for buffer in self._weights.values())

    def allocate(
        self, *, num_blocks: int, block_size: int, max_sequences: int, max_blocks: int, step_tokens: int, max_draws: int
    ) -> None:
        """Make the KV cache, zeroed, and room for steps. Raises VulkanError where the device binds no such buffer."""
        self._block_size, self._max_blocks = block_size, max_blocks
        self._max_draws = max_draws
        buffer, rows = self.device.buffer, step_tokens
        self._uploaded: dict[str, Int32s] = {}
        sizes = [num_blocks * self._block_bytes(cache) for cache in range(len(self.graph.caches))]
        names = [f"a cache of {side} for kv_cache_tokens={num_blocks * block_size}" for side in ("keys", "values")]
        self._caches = [tuple(buffer(size, name) for name in names) for size in sizes]
        self._inputs = {name: buffer(rows * 4, f"the step's {name}") for name in ("ids", "positions", "slots")}
        self._inputs["selected"] = buffer(max_draws * 4, "the selected rows")
        self._inputs["tables"] = buffer(max_sequences * max_blocks * 4, "the block tables")
        self._results = buffer((max_draws + rows) * 4, "the results")  # tokens by draw, then faults by row
        selected, owners = selected_values(self.graph), share_buffers(self.graph)
        self._values = [self._inputs["ids"]]
        for value, owner in enumerate(owners[1:], 1):
            size = (max_draws if value in selected else rows) * self.graph.widths[value] * FLOAT_BYTES
            self._values.append(self._values[owner] if owner < value else buffer(size, "a value of a step"))
        self._dispatches = [self._dispatch(op, op.inputs[0] in selected) for op in self.graph.ops]
        hidden, logits = self._values[self.graph.hidden], self._values[self.graph.logits]
        columns = {"COLUMNS": self.graph.widths[self.graph.hidden], "FIRST": max_draws}
        self._dispatches.append(self._bound("finite", columns, 1, 1, False, hidden, self._results))
        columns = {"COLUMNS": self.graph.widths[self.graph.logits], "TOKENS": True}
        self._dispatches.append(self._bound("argmax", columns, 1, 1, True, logits, self._results))

    def run(self, step: StepInputs) -> None:
        """Upload a step and start it; the likeliest token of each selected row is found, too."""
        if step.cleared_blocks:
            self._clear(step.cleared_blocks)
        for name in ("ids", "positions", "slots", "selected"):
            self._put(name, self._inputs[name], getattr(step, name))
        for value, numbers in zip(self.graph.inputs, step.inputs, strict=True):
            self.device.write(self._values[value], np.ascontiguousarray(numbers))
        self.device.write(self._inputs["tables"], step.tables, step.first_table * self._max_blocks * 4)
        rows, selected = len(step.ids), len(step.selected)
        self._put("rows", self._num_rows, np.array([rows, 0, 0, 0], dtype=np.int32))
        self._put("count", self._num_selected, np.array([selected, 0, 0, 0], dtype=np.int32))
        self.device.submit(self._dispatches, rows, selected)

    def read_floats(self, value: int, rows: int) -> torch.Tensor:
        """Rows of a value, copied to the host: [rows, width] float32."""
        width = self.graph.widths[value]
        view = self.device.read(self._values[value], rows * width * FLOAT_BYTES)
        return torch.frombuffer(bytearray(view), dtype=torch.float32).view(rows, width)

    def read_rows(self, value: int, rows: NDArray[np.int64]) -> torch.Tensor:
        """Some rows of a value, which ascend, copied to the host: [n, width] float32."""
        size = self.graph.widths[value] * FLOAT_BYTES
        data = self.device.read_pieces(self._values[value], (rows * size).tolist(), size)
        return torch.frombuffer(bytearray(data), dtype=torch.float32).view(len(rows), -1)

    def read_results(self, rows: int) -> tuple[Uint32s, Uint32s]:
        """The likeliest token of each draw, NOT_FINITE where a logit is not; and of each row 1 where it is not."""
        results = np.frombuffer(self.device.read(self._results, (self._max_draws + rows) * 4), dtype=np.uint32)
        return results[: self._max_draws], results[self._max_draws :]

    def read_blocks(self, cache: int, blocks: Sequence[int]) -> NDArray[np.float32]:
        """[2, tokens, kv heads, width]."""
        spec, size = self.graph.caches[cache], self._block_bytes(cache)
        offsets = [block * size for block in blocks]
        data = b"".join(self.device.read_pieces(buffer, offsets, size) for buffer in self._caches[cache])
        shape = (2, len(blocks), spec.heads, self._block_size, spec.width)
        pieces: NDArray[np.float32] = np.frombuffer(data, dtype=np.float32).reshape(shape).swapaxes(2, 3)
        return pieces.reshape(2, len(blocks) * self._block_size, spec.heads, spec.width)

    def write_blocks(self, cache: int, blocks: Sequence[int], numbers: NDArray[Any]) -> None:
        """The reverse, behind all steps so far."""
        spec, size = self.graph.caches[cache], self._block_bytes(cache)
        shape = (2, len(blocks), self._block_size, spec.heads, spec.width)
        pieces = np.ascontiguousarray(numbers.reshape(shape).swapaxes(2, 3), dtype=np.float32)
        for buffer, side in zip(self._caches[cache], pieces, strict=True):
            for block, piece in zip(blocks, side, strict=True):
                self.device.write(buffer, piece, block * size)

    def _put(self, name: str, buffer: Any, numbers: Int32s) -> None:
        """Upload numbers unless they stand there from the step before, as many do while the same sequences decode."""
        before = self._uploaded.get(name)
        if before is None or not np.array_equal(before, numbers):
            self.device.write(buffer, numbers)
            self._uploaded[name] = numbers.copy()

    def _clear(self, blocks: Sequence[int]) -> None:
        for cache, buffers in enumerate(self._caches):
            size = self._block_bytes(cache)
            self.device.clear_pieces(buffers, [block * size for block in blocks], size)

    def _block_bytes(self, cache: int) -> int:
        """Of one block's keys, and of its values as well."""
        spec = self.graph.caches[cache]
        return spec.heads * self._block_size * spec.width * FLOAT_BYTES

    def _upload(self, names: tuple[str, ...], weights: Weights) -> Any:
        """Vectors side by side, or matrices stacked by rows as [columns / 4, rows, 4] (see linear.wgsl)."""
        parts = [dequantise(weights[name], torch.float32, torch.device("cpu")) for name in names]
        vectors = all(weights[name].rows == 1 for name in names)
        dense = torch.cat([part.flatten() for part in parts] if vectors else parts)
        if not vectors:
            dense = dense.view(len(dense), -1, 4).transpose(0, 1)
        buffer = self.device.buffer(dense.numel() * FLOAT_BYTES, " and ".join(names))
        self.device.write(buffer, dense.contiguous().numpy())
        return buffer

    def _upload_frequencies(self, rope: Rope) -> Any:
        buffer = self.device.buffer(len(rope.frequencies) * FLOAT_BYTES, "the rope frequencies")
        self.device.write(buffer, np.asarray(rope.frequencies, dtype=np.float32))
        return buffer

    def _dispatch(self, op: Op, selected: bool) -> Dispatch:
        inputs = [self._values[value] for value in op.inputs]
        outputs = [self._values[value] for value in op.outputs]
        columns = self.graph.widths[op.outputs[0]]
        shader, step = op.kind.value, self._inputs
        if op.kind is OpKind.LINEAR:
            inner = self.graph.widths[op.inputs[0]]
            constants = {"COLUMNS": inner, "OUTPUTS": columns, "BIASED": bool(op.biases)}
            bias = self._weights[op.biases] if op.biases else self._no_bias
            count = self._num_selected if selected else self._num_rows
            buffers = (*inputs, self._weights[op.weights], bias, *outputs)
            few = self._bound("linear_row", constants, _groups(columns), 1, selected, *buffers)
            many = self._bound(shader, constants, _groups(columns), LINEAR_ROWS, selected, *buffers, count)
            return replace(many, few=few)
        if isinstance(op.attributes, Norm):
            norm = {"COLUMNS": columns, "EPS": op.attributes.eps}
            vectors = [self._weights[op.weights]]
            if op.kind is OpKind.LAYER_NORM:
                norm["BIASED"] = bool(op.biases)
                vectors.append(self._weights[op.biases] if op.biases else self._no_bias)
            return self._bound(shader, norm, 1, 1, selected, *inputs, *vectors, *outputs)
        if op.kind is OpKind.ARGMAX:
            row = {"COLUMNS": self.graph.widths[op.inputs[0]], "TOKENS": False}
            return self._bound(shader, row, 1, 1, selected, *inputs, *outputs)
        if op.kind in ELEMENTWISE:
            function = {"COLUMNS": columns, "FUNCTION": ELEMENTWISE.index(op.kind)}
            operands = inputs[0], inputs[-1], *outputs
            return self._bound("elementwise", function, _groups(columns), 1, selected, *operands)
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
        rows = (value, step["positions"], step["slots"], step["tables"])
        return self._bound(
            "rope_cache", shape, width, 1, False, *rows, self._frequencies[both.rope], keys, values, output
        )

    def _attention(self, attention: Attention, value: Any, output: Any) -> Dispatch:
        step, (keys, values) = self._inputs, self._caches[attention.cache]
        shape = self._heads(attention.heads, attention.kv_heads, attention.width) | {"SCALE": attention.scale}
        rows = (value, step["positions"], step["slots"], step["tables"], keys, values, output)
        return self._bound("paged_attention", shape, attention.heads, 1, False, *rows)

    def _heads(self, heads: int, kv_heads: int, width: int) -> dict[str, float]:
        blocks = {"BLOCK_SIZE": self._block_size, "TABLE_WIDTH": self._max_blocks}
        return {"HEADS": heads, "KV_HEADS": kv_heads, "DIMENSIONS": width, **blocks}

    def _bound(
        self, shader: str, constants: Mapping[str, float], width: int, rows: int, selected: bool, *buffers: Any
    ) -> Dispatch:
        pipeline = self.device.pipeline(shader, constants)
        return Dispatch(pipeline, self.device.bind(pipeline, buffers), width, rows, selected)


def _groups(invocations: int) -> int:
    return -(-invocations // WORKGROUP)
