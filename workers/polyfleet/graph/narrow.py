"""A lowering of fused graphs to steps in which every sequence has one row, and draws: five ops are left of a layer.

Pure, as those in `lowering`. What does not fit a rule stays as it was.
"""

from collections.abc import Sequence
from dataclasses import replace

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.lowering import compacted
from polyfleet.graph.ops import Attention, Norm, Op, OpKind, RopeAttention, RopeCache, of


def narrow(graph: KernelGraph) -> KernelGraph | None:
    """The graph with logits alone; None where no norm was taken into the ops behind it. `graph` is fused."""
    ops = _without_selection(graph.ops)
    selected = {op.outputs[0]: op.inputs[0] for op in graph.ops if op.kind is OpKind.SELECT_ROWS}
    logits = selected.get(graph.logits, graph.logits)
    narrowed = _Narrowing(ops, logits, graph.widths)
    ops = narrowed.norms(narrowed.attentions())
    if all(op.kind is not OpKind.NORM_LINEAR for op in ops):
        return None
    return compacted(replace(graph, ops=tuple(ops), widths=tuple(narrowed.widths), outputs=(logits,)))


def _without_selection(ops: Sequence[Op]) -> list[Op]:
    """All rows are wanted, in their order."""
    selected = {op.outputs[0]: op.inputs[0] for op in ops if op.kind is OpKind.SELECT_ROWS}
    kept = (op for op in ops if op.kind is not OpKind.SELECT_ROWS)
    return [replace(op, inputs=tuple(selected.get(value, value) for value in op.inputs)) for op in kept]


class _Narrowing:
    """The ops of a graph and who reads their values. `widths` grows with the values that are added."""

    def __init__(self, ops: list[Op], logits: int, widths: Sequence[int]) -> None:
        self._ops = ops
        self.widths = list(widths)
        self._readers: dict[int, list[Op]] = {logits: [Op(OpKind.ARGMAX, (logits,))]}  # whoever takes them
        self._makers: dict[int, Op] = {}
        for op in ops:
            self._makers.update(dict.fromkeys(op.outputs, op))
            for value in op.inputs:
                self._readers.setdefault(value, []).append(op)

    def attentions(self) -> list[Op]:
        """The ops with rope_attention where an attention alone reads what a rope_cache over its cache makes."""
        made: list[Op] = []
        for op in self._ops:
            plain = op.kind is OpKind.PAGED_ATTENTION and not op.weights
            maker = self._makers.get(op.inputs[0]) if plain else None
            if maker is None or maker.kind is not OpKind.ROPE_CACHE or not self._alone(maker, op):
                made.append(op)
                continue
            made.remove(maker)
            both = RopeAttention(of(maker, RopeCache), of(op, Attention))
            made.append(Op(OpKind.ROPE_ATTENTION, maker.inputs, op.outputs, maker.weights, attributes=both))
        return made

    def norms(self, ops: list[Op]) -> list[Op]:
        """The ops with norms taken into the linears behind them, and additions into those before them."""
        made: list[Op] = []
        factors: dict[int, tuple[int, int, Norm]] = {}  # of values that are gained only: their squares, and the norm
        silus: dict[int, Op] = {}  # by the outputs of the linears that take them
        for op in ops:
            if op.kind in (OpKind.RMS_NORM, OpKind.ADD_RMS_NORM) and self._fits(op, made):
                gained, squares = op.outputs[0], self._value(1)
                factors[gained] = (gained, squares, of(op, Norm))
                made.append(self._gained(op, squares, made))
            elif op.kind is OpKind.LINEAR and op.inputs[0] in factors:
                gained, squares, norm = factors[op.inputs[0]]
                norm_linear = replace(op, kind=OpKind.NORM_LINEAR, inputs=(gained, squares), attributes=norm)
                silu = next(iter(self._readers[op.outputs[0]]))
                if silu.kind is OpKind.SILU_MUL and self._alone(op, silu):
                    silus[op.outputs[0]] = silu
                    norm_linear = replace(norm_linear, kind=OpKind.NORM_SILU_MUL, outputs=silu.outputs)
                made.append(norm_linear)
            elif op.kind is not OpKind.SILU_MUL or op.inputs[0] not in silus:
                made.append(op)
        return made

    def _gained(self, norm: Op, squares: int, made: list[Op]) -> Op:
        """What makes the norm's gained rows; takes from `made` the linear that it adds to."""
        addition = self._addition(norm)
        if addition is None:
            return Op(OpKind.GAIN, norm.inputs, (norm.outputs[0], squares), norm.weights)
        linear, other = addition
        made.remove(linear)
        gained, total = norm.outputs
        return Op(OpKind.LINEAR_ADD, (linear.inputs[0], other), (total, gained, squares), linear.weights + norm.weights)

    def _addition(self, norm: Op) -> tuple[Op, int] | None:
        """Of an add_rms_norm the plain linear that it alone reads, and what it adds to that."""
        for value, other in zip(norm.inputs, norm.inputs[::-1], strict=True):
            linear = self._makers.get(value)
            if linear is not None and linear.kind is OpKind.LINEAR and not linear.biases and self._alone(linear, norm):
                return (linear, other) if norm.kind is OpKind.ADD_RMS_NORM else None
        return None

    def _fits(self, norm: Op, made: list[Op]) -> bool:
        """Whether whole rows are normalised, not widely, for linears alone, behind no addition but one to a linear."""
        readers, attributes = self._readers.get(norm.outputs[0], []), of(norm, Norm)
        if attributes.width or attributes.wide or not readers or any(op.kind is not OpKind.LINEAR for op in readers):
            return False
        addition = self._addition(norm)
        return norm.kind is OpKind.RMS_NORM or (addition is not None and addition[0] in made)

    def _alone(self, maker: Op, reader: Op) -> bool:
        """Whether nobody else reads the maker's only value, `reader` once."""
        return len(maker.outputs) == 1 and self._readers.get(maker.outputs[0]) == [reader]

    def _value(self, width: int) -> int:
        self.widths.append(width)
        return len(self.widths) - 1
