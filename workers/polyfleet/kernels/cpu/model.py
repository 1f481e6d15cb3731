"""One model in the CPU library: packed weights, KV cache, threads and two programs behind one call a step."""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyfleet.graph.adapt import adaptable
from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.lowering import fuse
from polyfleet.graph.ops import Experts, Heads
from polyfleet.kernels.adapters import Parts
from polyfleet.kernels.cpu import library
from polyfleet.kernels.cpu.adapters import adapter_bits, pack_rows
from polyfleet.kernels.cpu.footprint import padded, row_stride
from polyfleet.kernels.cpu.geometry import Geometry
from polyfleet.kernels.cpu.library import DONE, READ, PfLowRank, PfModel, PfStep
from polyfleet.kernels.cpu.packing import Packing
from polyfleet.kernels.cpu.program import Variant, programs
from polyfleet.kernels.cpu.stages import GROUP
from polyfleet.kernels.int8_rows import SCALE_BYTES
from polyfleet.kernels.weights.weight import Weight, Weights

COLUMN_MULTIPLE = 32  # of quantised weights

Int32s = NDArray[np.int32]


class CpuModel:
    """Runs the graph's programs. Not thread-safe. Holds the embedding's memory; packs everything else."""

    def __init__(
        self,
        graph: KernelGraph,
        weights: Weights,
        *,
        threads: int,
        instruction_set: str,
        wide: bool = False,
        codes: bool = False,
        adapters: bool = False,
        spent: Callable[[str], None] | None = None,
    ) -> None:
        """`wide`: whether long chunks of a prompt may be rounded to bfloat16, where the instruction set does. `codes`:
        keys and values are kept as int8 with scales. `spent` hears of each weight that is packed and not read again.

        Raises ValueError for a model that the library can't run, LibraryUnavailable without the library.
        """
        self._library = library.load()
        self._handle: int | None = None
        self.codes = codes
        if problem := unsupported(graph, weights):
            raise ValueError(problem)
        self.geometry, self._windowed = Geometry.of(fuse(graph)), graph.local_caches
        self._programs, self._widths = programs(graph, lambda name: weights[name].rows, adapters=adapters)
        self._ran: Variant = (False, False)
        self._sites = {name: number for number, name in enumerate(adaptable(graph))}
        self._adapter_bits = {name: adapter_bits(weights[name].format) for name in self._sites}
        self._packing = Packing(weights, self.geometry.ropes, self._sites, spent)
        stages = {variant: self._packing.program(program) for variant, program in self._programs.items()}
        self._handle = self._create(threads, instruction_set, wide)
        self._numbers = {variant: self._add(*each) for variant, each in stages.items()}
        self._packing.release()

    @property
    def weight_bytes(self) -> int:
        """Memory of the weights: packed, or as the model file has them."""
        packed: int = self._library.pf_executor_packed_bytes(self._alive())
        return packed + self._packing.num_bytes

    def allocate(self, num_blocks: int, block_size: int, rows: int, slots: int = 1, local_blocks: int = 0) -> None:
        """Make a KV cache of zeros, states of so many slots, room for steps of so many rows; raises MemoryError.

        With `local_blocks` the caches that are read through a window, where others are not, have so many of their own.
        """
        sizes = num_blocks, block_size, rows, slots, local_blocks
        library.check(self._library.pf_executor_allocate(self._alive(), *sizes))
        self.local = self._windowed if local_blocks else frozenset()
        counts = [local_blocks if each in self.local else num_blocks for each in range(self.geometry.num_caches)]
        self._shape = counts, block_size

    def set_adapter(self, number: int, parts: Parts) -> None:
        """Copy an adapter in the place of the one of that number; without parts that one's memory is freed.

        Raises MemoryError.
        """
        structs, alive = (PfLowRank * len(parts))(), list[NDArray[Any]]()
        in_use = sorted(parts.items(), key=lambda each: self._sites[each[0]])  # as a step reads them: one stream
        for struct, (name, part) in zip(structs, in_use, strict=True):
            struct.site, (struct.rank, struct.columns), struct.rows = self._sites[name], part.down.shape, len(part.up)
            struct.bits = self._adapter_bits[name]
            packed = [pack_rows(each, struct.bits) for each in (part.down, part.up)]
            struct.down, struct.up = (each.ctypes.data for each in packed)
            alive += packed
        library.check(self._library.pf_executor_set_adapter(self._alive(), number, structs, len(parts)))

    def step(self, step: PfStep, *, keep_hidden: bool, adapters: bool = False) -> None:
        """Compute one step; its results stand in `logits` and, when kept, `hidden` until the next.

        Raises ValueError for a step that would lead the library to memory that is not its own, before anything is
        written, and once the model is closed.
        """
        self._ran = keep_hidden, adapters
        step.logits = self._programs[self._ran].outputs[-1]
        library.check(self._library.pf_executor_step(self._alive(), self._numbers[self._ran], ctypes.byref(step)))

    def keys(self) -> list[NDArray[Any]]:
        """Of each cache all keys [blocks, kv heads, width, block size], float16 or int8 codes, views."""
        return [each[..., : self._shape[1]] for each in self._keys()[0]]

    def values(self) -> list[NDArray[Any]]:
        """Of each cache all values [blocks, kv heads, block size, width], views."""
        return [each[..., : self.geometry.attention.width] for each in self._values()[0]]

    def scales(self) -> tuple[list[NDArray[np.uint16]], list[NDArray[np.uint16]]]:
        """What codes of keys, and of values, count times: bits of bfloat16 [blocks, kv heads, block size], views."""
        keys, values = ([each[..., : self._shape[1]] for each in side] for side in (self._keys()[1], self._values()[1]))
        return keys, values

    def logits(self, rows: int) -> NDArray[np.float32]:
        """Logits [rows, vocabulary] of the last step, a view."""
        return self._view(self._programs[self._ran].outputs[-1], rows)

    def hidden(self, rows: int) -> NDArray[np.float32]:
        """Final hidden states [rows, H] of the last step, a view; only after a step that kept them."""
        return self._view(self._programs[self._ran].outputs[0], rows)

    def inputs(self, rows: int) -> tuple[NDArray[np.float32], ...]:
        """The graph's inputs [rows, width], to be written before a step that keeps hidden states; views."""
        return tuple(self._view(buffer, rows) for buffer in self._programs[True, False].inputs)

    def outputs(self, rows: int) -> tuple[NDArray[np.float32], ...]:
        """The graph's outputs [rows, width] of the last step, which kept hidden states; views."""
        return tuple(self._view(buffer, rows) for buffer in self._programs[self._ran].outputs)

    def close(self) -> None:
        """Free memory and threads; the model is of no use afterwards."""
        if self._handle is not None:
            self._library.pf_executor_destroy(self._handle)
            self._handle = None

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            self.close()

    def _create(self, threads: int, instruction_set: str, wide: bool) -> int:
        geometry, weights = self.geometry, self._packing.weights()
        attention = geometry.attention
        frequencies, amplitudes = (np.zeros((len(geometry.ropes), attention.width // 2), np.float32) for _ in range(2))
        for row, rope in enumerate(geometry.ropes):
            frequencies[row, : rope.width // 2], amplitudes[row, : rope.width // 2] = rope.frequencies, rope.amplitudes
        windowed = [each in self._windowed for each in range(geometry.num_caches)]
        widths, states, local = (np.array(each, dtype=np.int32) for each in (self._widths, geometry.states, windowed))
        model = PfModel(
            *(geometry.num_caches, attention.heads, attention.kv_heads, attention.width),
            attention.value_width or attention.width,
            *(len(weights), len(widths), len(geometry.ropes), len(states), attention.causal, wide, self.codes),
            attention.scale,
            *(each.ctypes.data_as(ctypes.POINTER(ctypes.c_float)) for each in (frequencies, amplitudes)),
            weights,
            widths.ctypes.data_as(library.Int32s),
            states.ctypes.data_as(library.Int32s),
            local.ctypes.data_as(library.Int32s),
            *(READ(self._packing.read), DONE(self._packing.done)),
        )
        handle: int | None = self._library.pf_executor_create(ctypes.byref(model), instruction_set.encode(), threads)
        if handle is None:
            raise self._packing.problem or ValueError(library.last_error())
        return handle

    def _add(self, stages: Any, operands: Int32s) -> int:
        pointer, add = operands.ctypes.data_as(library.Int32s), self._library.pf_executor_add_program
        return library.check(add(self._handle, stages, len(stages), pointer, len(operands)))

    def _alive(self) -> int:
        if self._handle is None:
            raise ValueError("this model is closed")
        return self._handle

    def _keys(self) -> tuple[list[NDArray[Any]], list[NDArray[np.uint16]]]:
        return self._sides(self._library.pf_executor_keys, self.geometry.attention.width, padded(self._shape[1]))

    def _values(self) -> tuple[list[NDArray[Any]], list[NDArray[np.uint16]]]:
        return self._sides(self._library.pf_executor_values, self._shape[1], padded(self.geometry.attention.width))

    def _sides(self, function: Any, rows: int, columns: int) -> tuple[list[NDArray[Any]], list[NDArray[np.uint16]]]:
        """Of each cache all blocks' numbers [blocks, kv heads, rows, columns], and the scales behind each head's."""
        (counts, block_size), heads = self._shape, self.geometry.attention.kv_heads
        dtype: np.dtype[Any] = np.dtype(np.int8 if self.codes else np.float16)
        end = rows * columns * dtype.itemsize
        size = end + (SCALE_BYTES * padded(block_size) if self.codes else 0)
        found = np.ctypeslib.as_array(function(self._alive()), shape=(sum(counts), heads, size))
        parts = np.split(found, np.cumsum(counts[:-1]))
        numbers = [each[..., :end].view(dtype).reshape(-1, heads, rows, columns) for each in parts]
        return numbers, [each[..., end:].view(np.uint16) for each in parts]

    def _view(self, buffer: int, rows: int) -> NDArray[np.float32]:
        width = self._widths[buffer]
        pointer = self._library.pf_executor_buffer(self._alive(), buffer)
        return np.ctypeslib.as_array(pointer, shape=(max(rows, 1), row_stride(width)))[:rows, :width]


def unsupported(graph: KernelGraph, weights: Weights) -> str:
    """Why the library can't run the graph, in words; empty when it can."""
    try:
        Geometry.of(fuse(graph))
    except ValueError as error:
        return str(error)
    for op in graph.ops:
        for weight in (weights[name] for name in op.weights):
            if problem := _problem(weight):
                return problem
        count = op.attributes.count if isinstance(op.attributes, Experts | Heads) else 1
        for name in op.weights if count > 1 else ():
            if (rows := weights[name].rows // count) % GROUP:
                return f"each part of {name} has {rows} rows, no multiple of {GROUP}"
    return ""


def _problem(weight: Weight) -> str:
    if weight.format.quantised and weight.columns % COLUMN_MULTIPLE:
        return f"weight {weight.name} has {weight.columns} columns, no multiple of {COLUMN_MULTIPLE}"
    if weight.rows == 1 and weight.format.quantised:
        return f"weight {weight.name} is a quantised vector"
    return ""
