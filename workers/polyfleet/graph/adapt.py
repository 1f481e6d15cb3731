"""A lowering to steps of sequences with adapters: behind each linear that these may change, an op adds what is theirs.

Pure, as those in `lowering`; it comes last, since its op stands between a linear and what is fused with that.
"""

from dataclasses import replace

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import Op, OpKind

LAYERS = "layers."  # how names of weights begin that are neither the embedding's nor the logits'


def adaptable(graph: KernelGraph) -> tuple[str, ...]:
    """The weights that adapters may change: those of linears inside layers."""
    return tuple(dict.fromkeys(name for op in graph.ops if _is_adapted(op) for name in op.weights))


def adapted(graph: KernelGraph) -> KernelGraph:
    """The graph with an `adapt` behind each linear whose weights are adaptable."""
    ops, widths = list[Op](), list(graph.widths)
    for op in graph.ops:
        if not _is_adapted(op):
            ops.append(op)
            continue
        plain = len(widths)
        widths.append(graph.widths[op.outputs[0]])
        ops.append(replace(op, outputs=(plain,)))
        ops.append(Op(OpKind.ADAPT, (op.inputs[0], plain), op.outputs, op.weights))
    return replace(graph, ops=tuple(ops), widths=tuple(widths))


def _is_adapted(op: Op) -> bool:
    return op.kind is OpKind.LINEAR and all(name.startswith(LAYERS) for name in op.weights)
