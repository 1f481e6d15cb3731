"""A lowering to steps of sequences with adapters: behind each linear that these may change, an op adds what is theirs.

Pure, as those in `lowering`; it comes last, since its op stands between a linear and what is fused with that. Where
`narrow` came before, products take what adapters add themselves, out of what an op before them makes of their rows.
"""

from dataclasses import replace

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.lowering import fuse, select_early
from polyfleet.graph.ops import Op, OpKind

FUSED = (OpKind.LINEAR_ADD, OpKind.NORM_LINEAR, OpKind.NORM_SILU_MUL)  # products that take it themselves,
MOST = 3  # of so many weights side by side
LAYERS = "layers."  # how names of weights begin that are neither the embedding's nor the logits'


def lowered(graph: KernelGraph, *, every_row: bool, adapters: bool) -> KernelGraph:
    """A model's graph as executors compute it: hidden states of every row, or of each no more than logits need."""
    fused = fuse(graph)
    found = fused if every_row else select_early(fused)
    return adapted(found) if adapters else found


def adaptable(graph: KernelGraph) -> tuple[str, ...]:
    """The weights that adapters may change: those of linears inside layers."""
    return tuple(dict.fromkeys(name for op in graph.ops for name in adapted_weights(op)))


def adapted(graph: KernelGraph) -> KernelGraph:
    """The graph with an `adapt` behind each linear whose weights are adaptable, a `shrink` before what is fused."""
    ops, widths = list[Op](), list(graph.widths)
    for op in graph.ops:
        names, plain = adapted_weights(op), len(widths)
        if not names:
            ops.append(op)
            continue
        if op.kind in FUSED:
            widths.append(1)
            ops += Op(OpKind.SHRINK, op.inputs[:1], (plain,), names), replace(op, inputs=(*op.inputs, plain))
            continue
        widths.append(graph.widths[op.outputs[0]])
        ops.append(replace(op, outputs=(plain,)))
        ops.append(Op(OpKind.ADAPT, (op.inputs[0], plain), op.outputs, op.weights))
    return replace(graph, ops=tuple(ops), widths=tuple(widths))


def few_weights(graph: KernelGraph) -> bool:
    """Whether no fused product has more weights side by side than can take what adapters add."""
    return all(len(adapted_weights(op)) <= MOST for op in graph.ops if op.kind in FUSED)


def adapted_weights(op: Op) -> tuple[str, ...]:
    """Those of a product that adapters may change: all of them, or none; the gain of a `linear_add` is not one."""
    if op.kind is not OpKind.LINEAR and op.kind not in FUSED:
        return ()
    names = op.weights[:-1] if op.kind is OpKind.LINEAR_ADD else op.weights
    return names if all(name.startswith(LAYERS) for name in names) else ()
