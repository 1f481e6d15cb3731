"""One model in the CPU library: packed weights, KV cache, threads and two programs behind one call a step."""

import ctypes
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from polyfleet.graph.adapt import adaptable
from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.lowering import fuse
from polyfleet.graph.ops import Experts, Heads, Rope
from polyfleet.kernels.adapters import Parts
from polyfleet.kernels.cpu import library
from polyfleet.kernels.cpu.adapters import pack_rows
from polyfleet.kernels.cpu.footprint import padded, row_stride
from polyfleet.kernels.cpu.geometry import Geometry
from polyfleet.kernels.cpu.layouts import FORMATS, format_read, readable
from polyfleet.kernels.cpu.library import DONE, READ, PfLowRank, PfModel, PfStage, PfStep, PfWeight
from polyfleet.kernels.cpu.program import Program, Variant, programs
from polyfleet.kernels.cpu.stages import GROUP, NONE, StageKind
from polyfleet.kernels.weights import Weight, WeightFormat, Weights

COLUMN_MULTIPLE = 32  # of quantised weights
PACKED = (StageKind.LINEAR, StageKind.EXPERTS, StageKind.HEAD_LINEAR)  # whose weights are

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
        adapters: bool = False,
    ) -> None:
        """`wide`: whether long chunks of a prompt may be rounded to bfloat16, where the instruction set does.

        Raises ValueError for a model that the library can't run, LibraryUnavailable without the library.
        """
        self._library = library.load()
        self._handle: int | None = None
        if problem := unsupported(graph, weights):
            raise ValueError(problem)
        self.geometry = Geometry.of(fuse(graph))
        self._programs, self._widths = programs(graph, lambda name: weights[name].rows, adapters=adapters)
        self._ran: Variant = (False, False)
        self._sites = {name: number for number, name in enumerate(adaptable(graph))}
        self._coarse = {name: weights[name].format.quantised for name in self._sites}  # as what adapters change
        self._packing = _Packing(weights, self.geometry.ropes, self._sites)
        stages = {variant: self._packing.program(program) for variant, program in self._programs.items()}
        self._handle = self._create(threads, instruction_set, wide)
        self._numbers = {variant: self._add(*each) for variant, each in stages.items()}
        self._packing.release()

    @property
    def weight_bytes(self) -> int:
        """Memory of the weights: packed, or as the model file has them."""
        packed: int = self._library.pf_executor_packed_bytes(self._alive())
        return packed + self._packing.num_bytes

    def allocate(self, num_blocks: int, block_size: int, rows: int, slots: int = 1) -> None:
        """Make a KV cache of zeros, states of so many slots, room for steps of so many rows; raises MemoryError."""
        library.check(self._library.pf_executor_allocate(self._alive(), num_blocks, block_size, rows, slots))
        self._shape = num_blocks, block_size

    def set_adapter(self, number: int, parts: Parts) -> None:
        """Copy an adapter in the place of the one of that number; without parts that one's memory is freed.

        Raises MemoryError.
        """
        structs, alive = (PfLowRank * len(parts))(), list[NDArray[Any]]()
        for struct, (name, part) in zip(structs, parts.items(), strict=True):
            struct.site, (struct.rank, struct.columns), struct.rows = self._sites[name], part.down.shape, len(part.up)
            coarse = self._coarse[name]
            struct.bytes = 1 if coarse else 2
            packed = (*pack_rows(part.down, coarse=coarse), *pack_rows(part.up, coarse=coarse))
            struct.down, struct.down_scale, struct.up, struct.up_scale = (each.ctypes.data for each in packed)
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

    def keys(self) -> NDArray[np.float16]:
        """All keys [caches, blocks, kv heads, width, block size], a view."""
        (num_blocks, block_size), kind = self._shape, self.geometry.attention
        shape = self.geometry.num_caches, num_blocks, kind.kv_heads, kind.width, padded(block_size)
        return self._halves(self._library.pf_executor_keys, shape)[..., :block_size]

    def values(self) -> NDArray[np.float16]:
        """All values [caches, blocks, kv heads, block size, width], a view."""
        (num_blocks, block_size), kind = self._shape, self.geometry.attention
        shape = self.geometry.num_caches, num_blocks, kind.kv_heads, block_size, padded(kind.width)
        return self._halves(self._library.pf_executor_values, shape)[..., : kind.width]

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
        widths, states = (np.array(each, dtype=np.int32) for each in (self._widths, geometry.states))
        model = PfModel(
            *(geometry.num_caches, attention.heads, attention.kv_heads, attention.width),
            attention.value_width or attention.width,
            *(len(weights), len(widths), len(geometry.ropes), len(states), attention.causal, wide, attention.scale),
            *(each.ctypes.data_as(ctypes.POINTER(ctypes.c_float)) for each in (frequencies, amplitudes)),
            weights,
            widths.ctypes.data_as(library.Int32s),
            states.ctypes.data_as(library.Int32s),
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

    def _halves(self, function: Any, shape: tuple[int, ...]) -> NDArray[np.float16]:
        return np.ctypeslib.as_array(function(self._alive()), shape=shape).view(np.float16)

    def _view(self, buffer: int, rows: int) -> NDArray[np.float32]:
        width = self._widths[buffer]
        pointer = self._library.pf_executor_buffer(self._alive(), buffer)
        return np.ctypeslib.as_array(pointer, shape=(max(rows, 1), row_stride(width)))[:rows, :width]


class _Packing:
    """Numbers the weights that programs name, once for each use, and keeps their memory until they are packed."""

    def __init__(self, weights: Weights, ropes: tuple[Rope, ...], sites: Mapping[str, int]) -> None:
        self._source = weights
        self._ropes = ropes
        self._sites = sites
        self._numbers: dict[tuple[str, bool], int] = {}  # (name, packed)
        self._entries: list[PfWeight] = []
        self._alive: list[tuple[bool, torch.Tensor]] = []
        self._later: dict[int, Weight] = {}  # what is made readable when it is packed, so that it never is all at once
        self._read: dict[int, torch.Tensor] = {}
        self.problem: Exception | None = None  # of `read`

    def read(self, number: int) -> int:
        """Where the data of a weight of `_later` lies, until `done`; 0 where there is a problem."""
        try:
            self._read[number] = readable(self._later[number]).data
        except (ValueError, MemoryError, RuntimeError) as error:
            self.problem = error
            return 0
        return self._read[number].data_ptr()

    def done(self, number: int) -> None:
        """It has been packed."""
        del self._read[number]

    def program(self, program: Program) -> tuple[Any, Int32s]:
        """The program as structs, and its operands."""
        operands: list[int] = []
        stages = (PfStage * len(program.stages))()
        for at, stage in zip(stages, program.stages, strict=True):
            packed = stage.kind in PACKED
            at.kind, at.input, at.residual, at.residual_out = (
                stage.kind,
                stage.input,
                stage.residual,
                stage.residual_out,
            )
            at.output, at.layer, at.epilogue, at.selected = stage.output, stage.layer, stage.epilogue, stage.selected
            at.eps, at.head_eps, at.factor, at.window = stage.eps, stage.head_eps, stage.factor, stage.window
            at.width, at.first_row = stage.width, stage.first_row
            at.sinks = self._number(stage.sinks, packed=False) if stage.sinks else NONE
            if stage.route:
                for name in ("experts", "top_k", "groups", "top_groups", "group_best", "sigmoid", "renormalise"):
                    setattr(at, name, getattr(stage.route, name))
            if stage.rule:
                for name in ("key_heads", "value_heads", "key_width", "value_width"):
                    setattr(at, name, getattr(stage.rule, name))
            if stage.experts:
                at.experts, at.top_k = stage.experts.count, stage.experts.top_k
            at.norm = self._number(stage.norm, packed=False) if stage.norm else NONE
            norms = [self._number(name, packed=False) for name in stage.head_norms] or [NONE, NONE]
            at.query_norm, at.key_norm = norms
            at.rope = self._ropes.index(stage.rope) if stage.rope else 0
            at.first_operand, at.num_operands = len(operands), len(stage.weights)
            if stage.kind is StageKind.ADAPT:
                rows = [self._source[name].rows for name in stage.weights]
                operands += [*(self._sites[name] for name in stage.weights), *accumulate(rows[:-1], initial=0)]
                continue
            operands += [self._number(name, packed=packed) for name in stage.weights]
            operands += [self._number(name, packed=False) for name in stage.biases] or [NONE] * len(stage.weights)
        return stages, np.array(operands, dtype=np.int32)

    def weights(self) -> Any:
        """All numbered weights as structs."""
        return (PfWeight * len(self._entries))(*self._entries)

    @property
    def num_bytes(self) -> int:
        """Of the memory that is kept."""
        return sum(data.nbytes for _, data in self._alive)

    def release(self) -> None:
        """Let go of what has been packed."""
        self._later.clear()
        self._alive = [(packed, data) for packed, data in self._alive if not packed]

    def _number(self, name: str, *, packed: bool) -> int:
        key = (name, packed)
        if key not in self._numbers:
            weight, number = self._source[name], len(self._entries)
            vector = weight.rows == 1 and not packed  # norms and biases are read as float32
            form, address = format_read(weight.format), 0
            if packed and form is not weight.format:
                self._later[number] = weight
            else:
                data = weight.data.float().contiguous() if vector else readable(weight).data.contiguous()
                form, address = WeightFormat.F32 if vector else form, data.data_ptr()
                self._alive.append((packed, data))
            self._numbers[key] = number
            entry = PfWeight(FORMATS[form], weight.rows, weight.columns, packed, address, name.encode())
            self._entries.append(entry)
        return self._numbers[key]


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
