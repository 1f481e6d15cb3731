"""What the CPU engine keeps of a model's weights, in bytes, from their shapes and formats alone. Pure."""

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import OpKind
from polyfleet.kernels.cpu.program import GROUP
from polyfleet.kernels.quantisation import BLOCKS
from polyfleet.kernels.weights import Weight, WeightFormat, Weights

BLOCK = 32  # columns of a packed block
Q4_BYTES = 4 * GROUP + BLOCK * GROUP // 2  # Q4Block of kernels.h
Q8_BYTES = 2 * GROUP + BLOCK * GROUP  # Q8High and Q8Low
EIGHT_BITS = (WeightFormat.Q8_0, WeightFormat.Q6_K)


def weight_bytes(graph: KernelGraph, weights: Weights) -> int:
    """Linears are packed anew, once for each weight; tables and vectors stay as they are."""
    packed = {name for op in graph.ops if op.kind is OpKind.LINEAR for name in op.weights}
    kept = {name for op in graph.ops if op.kind is not OpKind.LINEAR for name in op.weights}
    return sum(packed_bytes(weights[name]) for name in packed) + sum(file_bytes(weights[name]) for name in kept)


def packed_bytes(weight: Weight) -> int:
    """Rows in groups of 16, the last one padded."""
    groups = -(-weight.rows // GROUP)
    if not weight.format.quantised:
        return groups * GROUP * weight.columns * BLOCKS[weight.format].size
    return groups * (weight.columns // BLOCK) * (Q8_BYTES if weight.format in EIGHT_BITS else Q4_BYTES)


def file_bytes(weight: Weight) -> int:
    """As the model file has it."""
    layout = BLOCKS[weight.format]
    return weight.rows * -(-weight.columns // layout.weights) * layout.size
