"""The CPU engine of one model: packed weights, KV cache, threads and two programs behind one call a step."""

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.lowering import fuse
from polyfleet.graph.ops import OpKind
from polyfleet.kernels.cpu import library
from polyfleet.kernels.cpu.geometry import Geometry
from polyfleet.kernels.cpu.library import PfModel, PfStage, PfStep, PfWeight
from polyfleet.kernels.cpu.program import GROUP, NONE, Buffers, Program, StageKind, plan
from polyfleet.kernels.weights import Weight, WeightFormat, Weights

FORMATS = {form: number for number, form in enumerate(WeightFormat)}  # PfFormat of abi.h, in the same order
COLUMN_MULTIPLE = 32  # of quantised weights

Int32s = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class StepRows:
    """One step as the engine reads it; see PfStep in abi.h."""

    token_ids: Sequence[int]
    slice_rows: Sequence[int]
    slice_starts: Sequence[int]
    table_offsets: Sequence[int]
    block_tables: Sequence[int]
    selected_rows: Sequence[int]


def check_rows(rows: StepRows, vocabulary: int, num_blocks: int, block_size: int) -> None:
    """Raise ValueError for what would lead the engine to memory that is not its own."""
    if min(rows.token_ids, default=0) < 0 or max(rows.token_ids, default=0) >= vocabulary:
        raise ValueError(f"token ids must be 0 to {vocabulary - 1}")
    if min(rows.block_tables, default=0) < 0 or max(rows.block_tables, default=0) >= num_blocks:
        raise ValueError(f"block tables must name blocks 0 to {num_blocks - 1}")
    tables = pairwise((*rows.table_offsets, len(rows.block_tables)))
    for (first, last), start, (offset, end) in zip(pairwise(rows.slice_rows), rows.slice_starts, tables, strict=True):
        if last <= first or start < 0 or start + last - first > (end - offset) * block_size:
            raise ValueError("a slice must have tokens, a start of 0 or more, and a block for each of its positions")


class CpuEngine:
    """Runs the graph's programs. Not thread-safe. Holds the embedding's memory; packs everything else."""

    def __init__(
        self,
        graph: KernelGraph,
        weights: Weights,
        *,
        num_blocks: int,
        block_size: int,
        threads: int,
        instruction_set: str,
        wide: bool = False,
    ) -> None:
        """`wide`: whether long slices may be rounded to bfloat16, where the instruction set does.

        Raises ValueError for a model that the engine can't run, LibraryUnavailable without the library.
        """
        self._library = library.load()
        self._handle: int | None = None
        _check(graph, weights)
        embedding = next(op for op in graph.ops if op.kind is OpKind.EMBEDDING)
        self._bounds = weights[embedding.weights[0]].rows, num_blocks, block_size
        buffers = Buffers()
        self._programs = {
            keep: plan(graph, lambda name: weights[name].rows, buffers, keep_hidden=keep) for keep in (False, True)
        }
        self._widths = buffers.widths
        self._packing = _Packing(weights)
        stages = {keep: self._packing.program(program) for keep, program in self._programs.items()}
        self._handle = self._create(graph, threads, instruction_set, wide)
        self._numbers = {keep: self._add(*each) for keep, each in stages.items()}
        self._packing.release()

    def step(self, rows: StepRows, *, keep_hidden: bool, greedy: bool = False) -> list[int]:
        """Compute one step; its results stand in `logits` and, when kept, `hidden` until the next.

        When `greedy`, gives for each selected row the id of its largest logit, the lowest of equal ones, or -1 for a
        row whose logits are not all finite; else nothing. Raises ValueError for rows that no model of this size has,
        and once the engine is closed.
        """
        if self._handle is None:
            raise ValueError("this engine is closed")
        check_rows(rows, *self._bounds)
        parts = (rows.token_ids, rows.slice_rows, rows.slice_starts, rows.table_offsets, rows.block_tables)
        numbers = np.array([*chain(*parts), *rows.selected_rows, *rows.selected_rows], dtype=np.int32)  # the last: out
        places = [numbers.ctypes.data]
        for part in (*parts, rows.selected_rows):
            places.append(places[-1] + len(part) * numbers.itemsize)
        ids = places.pop()
        step = PfStep(
            *(len(rows.token_ids), len(rows.slice_starts), len(rows.selected_rows)),
            *places,
            self._programs[keep_hidden].logits,
            ids if greedy else None,
        )
        if self._library.pf_engine_step(self._handle, self._numbers[keep_hidden], ctypes.byref(step)) != 0:
            raise MemoryError(f"the step failed: {library.last_error()}")
        chosen: list[int] = numbers[len(numbers) - len(rows.selected_rows) :].tolist() if greedy else []
        return chosen

    def logits(self, rows: int, *, keep_hidden: bool) -> NDArray[np.float32]:
        """Logits [rows, vocabulary] of the last step, a view."""
        return self._view(self._programs[keep_hidden].logits, rows)

    def hidden(self, rows: int) -> NDArray[np.float32]:
        """Final hidden states [rows, H] of the last step, a view; only after a step that kept them."""
        return self._view(self._programs[True].hidden, rows)

    def close(self) -> None:
        """Free memory and threads; the engine is of no use afterwards."""
        if self._handle is not None:
            self._library.pf_engine_destroy(self._handle)
            self._handle = None

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            self.close()

    def _create(self, graph: KernelGraph, threads: int, instruction_set: str, wide: bool) -> int:
        geometry, weights = Geometry.of(fuse(graph)), self._packing.weights()
        attention, (_, num_blocks, block_size) = geometry.attention, self._bounds
        frequencies = np.array(geometry.rope.frequencies, dtype=np.float32)
        widths = np.array(self._widths, dtype=np.int32)
        model = PfModel(
            *(geometry.num_caches, attention.heads, attention.kv_heads, attention.width, block_size, num_blocks),
            *(len(weights), len(widths), wide, geometry.norm.eps, attention.scale),
            frequencies.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
            weights,
            widths.ctypes.data_as(library.Int32s),
        )
        handle: int | None = self._library.pf_engine_create(ctypes.byref(model), instruction_set.encode(), threads)
        if handle is None:
            raise ValueError(library.last_error())
        return handle

    def _add(self, stages: Any, operands: Int32s) -> int:
        pointer = operands.ctypes.data_as(library.Int32s)
        number: int = self._library.pf_engine_add_program(self._handle, stages, len(stages), pointer, len(operands))
        if number < 0:
            raise ValueError(library.last_error())
        return number

    def _view(self, buffer: int, rows: int) -> NDArray[np.float32]:
        width = self._widths[buffer]
        stride = -(-width // GROUP) * GROUP | GROUP  # an odd multiple
        pointer = self._library.pf_engine_buffer(self._handle, buffer)
        return np.ctypeslib.as_array(pointer, shape=(max(rows, 1), stride))[:rows, :width]


class _Packing:
    """Numbers the weights that programs name, once for each use, and keeps their memory until they are packed."""

    def __init__(self, weights: Weights) -> None:
        self._source = weights
        self._numbers: dict[tuple[str, bool], int] = {}  # (name, packed)
        self._entries: list[PfWeight] = []
        self._alive: list[tuple[bool, torch.Tensor]] = []

    def program(self, program: Program) -> tuple[Any, Int32s]:
        """The program as structs, and its operands."""
        operands: list[int] = []
        stages = (PfStage * len(program.stages))()
        for at, stage in zip(stages, program.stages, strict=True):
            packed = stage.kind is StageKind.LINEAR
            at.kind, at.input, at.residual, at.residual_out = (
                stage.kind,
                stage.input,
                stage.residual,
                stage.residual_out,
            )
            at.output, at.layer, at.epilogue, at.selected = stage.output, stage.layer, stage.epilogue, stage.selected
            at.norm = self._number(stage.norm, packed=False) if stage.norm else NONE
            at.first_operand, at.num_operands = len(operands), len(stage.weights)
            operands += [self._number(name, packed=packed) for name in stage.weights]
            operands += [self._number(name, packed=False) for name in stage.biases] or [NONE] * len(stage.weights)
        return stages, np.array(operands, dtype=np.int32)

    def weights(self) -> Any:
        """All numbered weights as structs."""
        return (PfWeight * len(self._entries))(*self._entries)

    def release(self) -> None:
        """Let go of what has been packed."""
        self._alive = [(packed, data) for packed, data in self._alive if not packed]

    def _number(self, name: str, *, packed: bool) -> int:
        key = (name, packed)
        if key not in self._numbers:
            weight = self._source[name]
            vector = weight.rows == 1 and not packed  # norms and biases are read as float32
            data = weight.data.float().contiguous() if vector else weight.data.contiguous()
            form = WeightFormat.F32 if vector else weight.format
            self._alive.append((packed, data))
            self._numbers[key] = len(self._entries)
            entry = PfWeight(FORMATS[form], weight.rows, weight.columns, packed, data.data_ptr(), name.encode())
            self._entries.append(entry)
        return self._numbers[key]


def unsupported(graph: KernelGraph, weights: Weights) -> str:
    """Why the engine can't run the graph, in words; empty when it can."""
    try:
        Geometry.of(fuse(graph))
    except ValueError as error:
        return str(error)
    for op in graph.ops:
        for weight in (weights[name] for name in op.weights):
            if problem := _problem(weight):
                return problem
    return ""


def _problem(weight: Weight) -> str:
    if weight.format not in FORMATS:
        return f"weight {weight.name} has a format that the CPU engine does not read"
    if weight.format.quantised and weight.columns % COLUMN_MULTIPLE:
        return f"weight {weight.name} has {weight.columns} columns, no multiple of {COLUMN_MULTIPLE}"
    if weight.rows == 1 and weight.format.quantised:
        return f"weight {weight.name} is a quantised vector"
    return ""


def _check(graph: KernelGraph, weights: Weights) -> None:
    if problem := unsupported(graph, weights):
        raise ValueError(problem)


def implementations(instruction_set: str, formats: Iterable[WeightFormat]) -> Mapping[str, str]:
    """What runs each op; linears by the format of their weights."""
    names = ("embedding", "rms_norm", "add_rms_norm", "rope_cache", "paged_attention", "silu_mul", "select_rows")
    function = library.load().pf_linear_implementation
    forms = sorted(set(formats), key=list(WeightFormat).index)
    linears = (f"{form.value}: {function(instruction_set.encode(), FORMATS[form]).decode()}" for form in forms)
    return {**dict.fromkeys(names, f"cpu {instruction_set}"), "linear": "cpu " + ", ".join(linears)}


def linear_formats(graph: KernelGraph, weights: Weights) -> frozenset[WeightFormat]:
    """Formats of the weights that linears read."""
    return frozenset(weights[name].format for op in graph.ops if op.kind is OpKind.LINEAR for name in op.weights)
