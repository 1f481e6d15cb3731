"""Small graphs for tests of the CPU library: rows come from an embedding, results are the graph's "logits"."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from polyfleet.graph.kernel_graph import GraphBuilder
from polyfleet.graph.ops import Norm, Op, OpKind, Rope, RopeCache
from polyfleet.kernels.cpu import library
from polyfleet.kernels.cpu.library import PfStep
from polyfleet.kernels.cpu.model import CpuModel
from polyfleet.kernels.weights.weight import Weight, WeightFormat

MAX_ROWS = 4096  # of a step
Floats = NDArray[np.float32]
Slice = tuple[Sequence[int], int, Sequence[int]]  # of one sequence: ids, position of the first, block table
Record = Callable[["FusedBuilder", int], int]  # records ops behind the embedding of rows, returns the result

# Where float16 numbers stand in a block, and the block's weights and bytes.
HALVES = {
    WeightFormat.Q8_0: ((0,), 32, 34),
    WeightFormat.Q4_0: ((0,), 32, 18),
    WeightFormat.Q4_1: ((0, 2), 32, 20),
    WeightFormat.Q4_K: ((0, 2), 256, 144),
    WeightFormat.Q6_K: ((208,), 256, 210),
    WeightFormat.Q5_0: ((0,), 32, 22),
    WeightFormat.Q5_1: ((0, 2), 32, 24),
    WeightFormat.Q2_K: ((80, 82), 256, 84),
    WeightFormat.Q3_K: ((108,), 256, 110),
    WeightFormat.Q5_K: ((0, 2), 256, 176),
    WeightFormat.Q8_K: ((), 256, 292),
    WeightFormat.TQ1_0: ((52,), 256, 54),
    WeightFormat.TQ2_0: ((64,), 256, 66),
    WeightFormat.IQ1_S: ((0,), 256, 50),
    WeightFormat.IQ1_M: ((), 256, 56),
    WeightFormat.IQ2_XXS: ((0,), 256, 66),
    WeightFormat.IQ2_XS: ((0,), 256, 74),
    WeightFormat.IQ2_S: ((0,), 256, 82),
    WeightFormat.IQ3_XXS: ((0,), 256, 98),
    WeightFormat.IQ3_S: ((0,), 256, 110),
    WeightFormat.IQ4_NL: ((0,), 32, 18),
    WeightFormat.IQ4_XS: ((0,), 256, 136),
    WeightFormat.MXFP4: ((), 32, 17),
}
SINGLES = {  # where a float32 number stands
    WeightFormat.Q8_K: (256, 292),
    WeightFormat.INT4: (32, 21),
    WeightFormat.INT8: (32, 37),
    WeightFormat.FP8: (32, 36),
}


def available_sets() -> tuple[str, ...]:
    """Instruction sets to test; none without the library."""
    try:
        return library.instruction_sets()
    except library.LibraryUnavailable:
        return ()


def missing() -> str:
    """Why the library can't be tested; empty when it can."""
    try:
        library.load()
    except library.LibraryUnavailable as error:
        return str(error)
    return ""


needs_library = pytest.mark.skipif(bool(missing()), reason=missing())


def dense(name: str, values: Floats, form: WeightFormat = WeightFormat.F32) -> Weight:
    """A dense weight; vectors become one row."""
    dtype = {WeightFormat.F32: torch.float32, WeightFormat.F16: torch.float16, WeightFormat.BF16: torch.bfloat16}[form]
    matrix = torch.from_numpy(np.atleast_2d(values)).to(dtype)
    return Weight(name, form, matrix.shape[0], matrix.shape[1], matrix)


def random_weight(name: str, form: WeightFormat, rows: int, columns: int, seed: int = 0) -> Weight:
    """Random numbers of ordinary size in any format; quantised ones are random blocks."""
    rng = np.random.default_rng(seed)
    if not form.quantised:
        return dense(name, rng.standard_normal((rows, columns), dtype=np.float32) / np.float32(columns**0.5), form)
    halves, (weights, size) = HALVES.get(form, ((), 0, 0))[0], SINGLES.get(form) or HALVES[form][1:]
    blocks = rng.integers(0, 256, (rows, columns // weights, size), dtype=np.uint8)
    if form in SINGLES:
        singles = rng.uniform(-1, 1, blocks.shape[:2]).astype(np.float32) * np.float32(0.01)
        blocks[..., :4] = singles[..., None].view(np.uint8)
    if form is WeightFormat.FP8:
        blocks[..., 4:] = np.where(blocks[..., 4:] & 0x7F == 0x7F, 0, blocks[..., 4:])  # which is no number
    if form is WeightFormat.IQ1_M:  # its scale's nibbles stand in the high ends of four words: 0x2400 is 2^-6
        blocks[..., 49::2] = blocks[..., 49::2] & 0xF | np.array([0, 0, 0x40, 0x20], dtype=np.uint8)
    if form is WeightFormat.MXFP4:  # exponents of 2, 127 more
        blocks[..., 0] = rng.integers(110, 121, blocks.shape[:2])
    for offset in halves:
        scales = rng.uniform(-1, 1, blocks.shape[:2]).astype(np.float16) * np.float16(0.01)
        blocks[..., offset : offset + 2] = scales[..., None].view(np.uint8)
    return Weight(name, form, rows, columns, torch.from_numpy(blocks.reshape(rows, -1)))


def expand(weight: Weight) -> NDArray[np.float64]:
    """The weight's numbers, by the `gguf` package."""
    if not weight.format.quantised:
        return weight.data.double().numpy()
    if weight.format in (WeightFormat.INT4, WeightFormat.INT8, WeightFormat.FP8):
        return _of_folders(weight)
    kind = gguf.GGMLQuantizationType[weight.format.value]
    return np.asarray(gguf.quants.dequantize(weight.data.numpy(), kind), dtype=np.float64)


def _of_folders(weight: Weight) -> NDArray[np.float64]:
    """As kernels/weights/folder_blocks.py states these blocks, written out."""
    blocks = weight.data.numpy().reshape(weight.rows, weight.columns // 32, -1)
    scales = blocks[..., :4].copy().view(np.float32).astype(np.float64)
    if weight.format is WeightFormat.FP8:
        codes = np.array([_e4m3(code) for code in range(256)])[blocks[..., 4:]]
    else:
        low, high = blocks[..., 5:] & 15, blocks[..., 5:] >> 4
        codes = np.concatenate((low, high), axis=-1) if weight.format is WeightFormat.INT4 else blocks[..., 5:]
        codes = codes.astype(np.float64) - blocks[..., 4:5]
    return np.asarray((scales * codes).reshape(weight.rows, -1), dtype=np.float64)


def _e4m3(code: int) -> float:
    sign, exponent, fraction = -1 if code & 128 else 1, code >> 3 & 15, code & 7
    return sign * (2.0 ** (exponent - 7) * (1 + fraction / 8) if exponent else 2.0**-6 * fraction / 8)


@dataclass(frozen=True)
class Params:
    """Heads of every layer; their rotation turns at different speeds."""

    num_heads: int = 1
    num_kv_heads: int = 1
    head_dim: int = 16
    num_layers: int = 1

    @property
    def inverse_frequencies(self) -> tuple[float, ...]:
        return tuple(10.0 ** (-2 * i / self.head_dim) for i in range(self.head_dim // 2))

    @property
    def attention_scale(self) -> float:
        return float(self.head_dim**-0.5)


class FusedBuilder(GraphBuilder):
    """Records the ops that the engine runs, fused ones included, for heads of one shape."""

    def __init__(self, params: Params, row_counts: Mapping[str, int], column_counts: Mapping[str, int]) -> None:
        super().__init__(row_counts, column_counts)
        self.params = params
        for _ in range(params.num_layers):
            self.cache(params.num_kv_heads, params.head_dim)

    def norm(self, x: int, weight: str) -> int:
        """x -> y."""
        return self.rms_norm(x, weight, 1e-5)

    def add_rms_norm(self, x: int, residual: int, weight: str) -> tuple[int, int]:
        """x, residual -> y, residual'."""
        outputs = (self.value(self.widths[x]), self.value(self.widths[x]))
        self.ops.append(Op(OpKind.ADD_RMS_NORM, (x, residual), outputs, (weight,), attributes=Norm(1e-5)))
        return outputs

    def rope_cache(self, qkv: int, layer: int) -> int:
        """qkv -> q."""
        params = self.params
        rope = Rope(params.head_dim, params.inverse_frequencies)
        attributes = RopeCache(layer, params.num_heads, params.num_kv_heads, rope)
        return self.record(OpKind.ROPE_CACHE, (qkv,), params.num_heads * params.head_dim, attributes=attributes)

    def attention(self, q: int, layer: int) -> int:
        """q -> y."""
        return self.paged_attention(q, layer, self.params.num_heads, self.params.attention_scale)

    def silu_mul(self, gate_up: int) -> int:
        """gate_up -> y."""
        return self.record(OpKind.SILU_MUL, (gate_up,), self.widths[gate_up] // 2)


def run_step(
    engine: CpuModel,
    slices: Sequence[Slice],
    selected: Sequence[int] = (),
    cleared: Sequence[int] = (),
    *,
    keep_hidden: bool = False,
    adapters: Sequence[int] = (),
) -> tuple[NDArray[np.int32], NDArray[np.int8]]:
    """A step in which any rows may be selected; gives their likeliest ids, and a fault for each slice.

    `adapters`: the number of each slice's, negative for none.
    """
    ids = [token_id for each, _, _ in slices for token_id in each]
    starts = np.cumsum([0, *(len(each) for each, _, _ in slices)])
    tables = np.zeros((len(slices), max(len(table) for _, _, table in slices)), dtype=np.int32)
    for row, (_, _, table) in zip(tables, slices, strict=True):
        row[: len(table)] = table
    lengths = [start + len(each) for each, start, _ in slices]
    parts = (ids, range(len(slices)), starts, lengths, selected, cleared, tables)
    arrays = [np.ascontiguousarray(part, dtype=np.int32) for part in parts]
    greedy_ids, faults = np.zeros(len(selected), np.int32), np.zeros(len(slices), np.int8)
    numbers = np.array(adapters, dtype=np.int32)
    step = PfStep(
        *(len(ids), len(slices), len(selected), len(cleared), *tables.shape, 0),
        *(array.ctypes.data for array in arrays),
        *(numbers.ctypes.data if adapters else None, greedy_ids.ctypes.data, faults.ctypes.data),
    )
    engine.step(step, keep_hidden=keep_hidden, adapters=bool(adapters))
    return greedy_ids, faults


class Rig:
    """One engine over rows that an embedding looks up: token id i is row i."""

    def __init__(
        self,
        rows: Floats,
        record: Record,
        *weights: Weight,
        instruction_set: str,
        params: Params | None = None,
        threads: int = 2,
        block_size: int = 16,
        num_blocks: int = 4,
        keep_hidden: bool = True,
        wide: bool = False,
        codes: bool = False,
        adapters: bool = False,
    ) -> None:
        held = {weight.name: weight for weight in (dense("rows", rows), *weights)}
        counts = {name: weight.rows for name, weight in held.items()}
        columns = {name: weight.columns for name, weight in held.items()}
        graph = FusedBuilder(params or Params(), counts, columns)
        source = graph.embedding("rows")
        result = record(graph, source)
        self.keep_hidden = keep_hidden
        self.block_size = block_size
        self.engine = CpuModel(
            graph.finish(hidden=source, logits=result),
            held,
            threads=threads,
            instruction_set=instruction_set,
            wide=wide,
            codes=codes,
            adapters=adapters,
        )
        self.engine.allocate(num_blocks, block_size, MAX_ROWS)

    def run(
        self,
        slices: Sequence[Slice],
        selected: Sequence[int] = (),
        cleared: Sequence[int] = (),
    ) -> Floats:
        """A step; gives the result's rows, the selected ones if any are named.

        Behind it `greedy_ids` and `faults` stand for what it wrote.
        """
        self.greedy_ids, self.faults = run_step(self.engine, slices, selected, cleared, keep_hidden=self.keep_hidden)
        ids = [token_id for each, _, _ in slices for token_id in each]
        result: Floats = self.engine.logits(len(selected) or len(ids)).copy()
        return result

    def all_rows(self, count: int) -> Floats:
        """The result for rows 0 ... count - 1 as one sequence."""
        return self.run([(range(count), 0, range(-(-count // self.block_size)))])


def shuffled(num_blocks: int, seed: int = 3) -> list[int]:
    """All blocks in a random order."""
    blocks = list(range(num_blocks))
    random.Random(seed).shuffle(blocks)
    return blocks


def by_name(*weights: Weight) -> Mapping[str, Weight]:
    """Weights by name."""
    return {weight.name: weight for weight in weights}
