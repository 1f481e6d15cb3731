"""Which values of a KernelGraph share a buffer on a Vulkan device, and what a step's rows take there. Pure."""

from collections import defaultdict

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import OpKind

FLOAT_BYTES = 4


def row_bytes(graph: KernelGraph) -> tuple[int, int]:
    """What the values of a row take on the device: of each row of a step, and of each whose logits are wanted."""
    selected = selected_values(graph)
    buffers = set(share_buffers(graph)[1:])
    total = sum(graph.widths[value] * FLOAT_BYTES for value in buffers)
    wanted = sum(graph.widths[value] * FLOAT_BYTES for value in buffers & selected)
    return total - wanted, wanted


def selected_values(graph: KernelGraph) -> set[int]:
    """The values that have a row for each draw alone."""
    found: set[int] = set()
    for op in graph.ops:
        if op.kind is OpKind.SELECT_ROWS or set(op.inputs) & found:
            found |= set(op.outputs)
    return found


def share_buffers(graph: KernelGraph) -> list[int]:
    """Of each value, the first value in whose buffer it lies: of its shape, and read no more when it is made."""
    selected = selected_values(graph)
    last = {value: at for at, op in enumerate(graph.ops) for value in (*op.outputs, *op.inputs)}
    last |= dict.fromkeys((0, *graph.outputs), len(graph.ops))
    owners = list(range(len(graph.widths)))
    free: dict[tuple[int, bool], list[int]] = defaultdict(list)
    for at, op in enumerate(graph.ops):
        for value in op.outputs:
            if unused := free[graph.widths[value], value in selected]:
                owners[value] = unused.pop()
        for value in {*op.inputs, *op.outputs}:
            if last[value] == at:
                free[graph.widths[value], value in selected].append(owners[value])
    return owners
