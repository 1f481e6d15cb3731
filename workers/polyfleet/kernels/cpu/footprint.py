"""What the CPU library keeps in memory, in bytes, from the shapes and formats of weights alone. Pure."""

from collections.abc import Iterable

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import Experts, OpKind, of
from polyfleet.kernels.cpu.layouts import FOUR_BITS, format_read
from polyfleet.kernels.cpu.stages import GROUP
from polyfleet.kernels.int8_rows import SCALE_BYTES
from polyfleet.kernels.weights.quantisation import BLOCKS
from polyfleet.kernels.weights.weight import Weight, Weights

BLOCK = 32  # columns of a packed block
Q4_BYTES = 4 * GROUP + BLOCK * GROUP // 2  # Q4Block of kernels.h
Q8_BYTES = 2 * GROUP + BLOCK * GROUP  # Q8High and Q8Low
MATRICES = (OpKind.LINEAR, OpKind.EXPERTS, OpKind.HEAD_LINEAR)  # ops whose weights are packed
HALF, SINGLE = 2, 4  # bytes of a number


def weight_bytes(graph: KernelGraph, weights: Weights) -> int:
    """Matrices are packed anew, once for each weight; tables, vectors and biases stay as they are."""
    packed = {name for op in graph.ops if op.kind in MATRICES for name in op.weights}
    kept = {name for op in graph.ops if op.kind not in MATRICES for name in op.weights}
    kept |= {name for op in graph.ops for name in op.biases}
    return sum(packed_bytes(weights[name]) for name in packed) + sum(file_bytes(weights[name]) for name in kept)


def packed_bytes(weight: Weight) -> int:
    """Rows in groups of 16, the last one padded."""
    groups = -(-weight.rows // GROUP)
    if not weight.format.quantised:
        return groups * GROUP * weight.columns * BLOCKS[weight.format].size
    return groups * (weight.columns // BLOCK) * (Q4_BYTES if format_read(weight.format) in FOUR_BITS else Q8_BYTES)


def file_bytes(weight: Weight) -> int:
    """As the model file has it, or as the library reads it."""
    layout = BLOCKS[format_read(weight.format)]
    return weight.rows * -(-weight.columns // layout.weights) * layout.size


def kv_bytes(graph: KernelGraph, block_size: int, *, codes: bool = False) -> int:
    """Of a token's keys and values over all caches, padded so that whole vectors can be read.

    In half precision, or as codes with a scale for each head of each side.
    """
    spread = padded(block_size) / block_size
    keys = sum(each.heads * each.width for each in graph.caches) * spread
    values = sum(each.heads * padded(each.width) for each in graph.caches)
    scales = sum(2 * each.heads for each in graph.caches) * spread * SCALE_BYTES
    return round(keys + values + scales if codes else (keys + values) * HALF)


def step_bytes(graph: KernelGraph, weights: Weights, widths: Iterable[int], rows: int) -> int:
    """Of a step's rows: in buffers of these widths, and entering linears as float32, bfloat16 and int8 with scales;
    rows inside experts do so once for each expert that they go to."""
    columns = [weights[name].columns for op in graph.ops if op.kind in MATRICES for name in op.weights]
    columns += [graph.widths[op.inputs[0]] for op in graph.ops if op.kind is OpKind.HEAD_LINEAR]
    mixtures = [op for op in graph.ops if op.kind is OpKind.EXPERTS]
    entering = row_stride(max(columns, default=1), BLOCK)
    entering += max((of(op, Experts).top_k for op in mixtures), default=0) * max(
        (row_stride(weights[op.weights[-1]].columns, BLOCK) for op in mixtures), default=0
    )
    return rows * (SINGLE * (sum(map(row_stride, widths)) + entering + 2 * entering // GROUP) + (HALF + 1) * entering)


def padded(width: int, unit: int = GROUP) -> int:
    """Rounded up to whole units."""
    return -(-width // unit) * unit


def row_stride(width: int, unit: int = GROUP) -> int:
    """Numbers from one row to the next: an odd multiple of `unit`."""
    return padded(width, unit) | unit
