"""Passes over a KernelGraph that all executors share. Pure: a graph in, an equal graph out.

fuse           plain ops become the fused ones that an executor has, where nobody else reads what lies in between
select_early   only the rows whose logits are wanted go on behind the last op that reads other rows
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import CacheWrite, Norm, Op, OpKind, Rope, RopeCache, of

Rule = Callable[["_Uses", int, Op], "_Found | None"]  # (uses, position and op of the rule's anchor)
FUSED = frozenset({OpKind.ADD_RMS_NORM, OpKind.ROPE_CACHE, OpKind.SILU_MUL})


@dataclass(frozen=True, slots=True)
class _Found:
    """What a rule found: `ops` go to position `at`, the ops at all positions of `taken` go."""

    at: int
    taken: frozenset[int]
    ops: tuple[Op, ...]


class _Uses:
    """Who makes and who reads each value of a graph. `widths` grows with the values that rules add."""

    def __init__(self, graph: KernelGraph) -> None:
        self.graph = graph
        self.widths = list(graph.widths)
        self.readers: dict[int, list[int]] = {value: [-1] for value in graph.outputs}  # positions; -1: from outside
        self._makers: dict[int, int] = {}
        for at, op in enumerate(graph.ops):
            self._makers.update(dict.fromkeys(op.outputs, at))
            for value in op.inputs:
                self.readers.setdefault(value, []).append(at)

    def value(self, width: int) -> int:
        """A new value of so many columns."""
        self.widths.append(width)
        return len(self.widths) - 1

    def maker(self, value: int, kind: OpKind) -> int | None:
        """The position of the op of this kind that makes `value` for one reader alone."""
        at = self._makers.get(value)
        if at is None or self.graph.ops[at].kind is not kind or len(self.readers.get(value, ())) != 1:
            return None
        return at

    def packed(self, *linears: int) -> Op | None:
        """One linear in the place of several that read the same value, if either all or none have biases."""
        ops = [self.graph.ops[at] for at in linears]
        biases = tuple(bias for op in ops for bias in op.biases)
        weights = tuple(weight for op in ops for weight in op.weights)
        if any(op.inputs != ops[0].inputs for op in ops) or len(biases) not in (0, len(weights)):
            return None
        width = sum(self.widths[op.outputs[0]] for op in ops)
        return Op(OpKind.LINEAR, ops[0].inputs, (self.value(width),), weights, biases)


def fuse(graph: KernelGraph, kinds: Collection[OpKind] = FUSED) -> KernelGraph:
    """The graph with every fused op of `kinds` that can be made."""
    for kind, (anchor, rule) in _RULES.items():
        if kind in kinds:
            graph = _apply(graph, anchor, rule)
    return compacted(graph)


def _apply(graph: KernelGraph, anchor: OpKind, rule: Rule) -> KernelGraph:
    uses = _Uses(graph)
    put: dict[int, tuple[Op, ...]] = {}
    taken: set[int] = set()
    for at, op in enumerate(graph.ops):
        if op.kind is anchor and (found := rule(uses, at, op)):
            put[found.at] = found.ops
            taken |= found.taken
    ops: list[Op] = []
    for at, op in enumerate(graph.ops):
        ops += put.get(at, () if at in taken else (op,))
    return replace(graph, ops=tuple(ops), widths=tuple(uses.widths))


def compacted(graph: KernelGraph) -> KernelGraph:
    """Without the values that no op makes any more."""
    used = sorted({0, *graph.inputs, *(value for op in graph.ops for value in op.outputs)})
    number = {value: index for index, value in enumerate(used)}

    def renumbered(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(number[value] for value in values)

    ops = (replace(op, inputs=renumbered(op.inputs), outputs=renumbered(op.outputs)) for op in graph.ops)
    widths = tuple(graph.widths[value] for value in used)
    outputs, inputs = renumbered(graph.outputs), renumbered(graph.inputs)
    return replace(graph, ops=tuple(ops), widths=widths, outputs=outputs, inputs=inputs)


def _add_rms_norm(uses: _Uses, at: int, add: Op) -> _Found | None:
    """The sum may have other readers: the fused op makes it too."""
    for reader in uses.readers.get(add.outputs[0], ()):
        norm = uses.graph.ops[reader] if reader >= 0 else None
        if norm is not None and norm.kind is OpKind.RMS_NORM and not of(norm, Norm).width:
            outputs = (norm.outputs[0], add.outputs[0])
            fused = Op(OpKind.ADD_RMS_NORM, add.inputs, outputs, norm.weights, attributes=norm.attributes)
            return _Found(at, frozenset({at, reader}), (fused,))
    return None


def _silu_mul(uses: _Uses, at: int, mul: Op) -> _Found | None:
    silu = uses.maker(mul.inputs[0], OpKind.SILU)
    gate = None if silu is None else uses.maker(uses.graph.ops[silu].inputs[0], OpKind.LINEAR)
    up = uses.maker(mul.inputs[1], OpKind.LINEAR)
    if silu is None or gate is None or up is None or (packed := uses.packed(gate, up)) is None:
        return None
    fused = Op(OpKind.SILU_MUL, packed.outputs, mul.outputs)
    return _Found(at, frozenset({at, silu, gate, up}), (packed, fused))


def _rope_cache(uses: _Uses, at: int, write: Op) -> _Found | None:
    cache = of(write, CacheWrite).cache
    key, value = uses.maker(write.inputs[0], OpKind.ROPE), uses.maker(write.inputs[1], OpKind.LINEAR)
    query = _query(uses, at, cache)
    if key is None or value is None or query is None:
        return None
    ropes = [uses.graph.ops[each] for each in (query, key)]
    rope = of(ropes[0], Rope)
    norms = [uses.maker(op.inputs[0], OpKind.RMS_NORM) for op in ropes]
    normed = [uses.graph.ops[each] for each in norms if each is not None]
    linears = [uses.maker(op.inputs[0], OpKind.LINEAR) for op in normed or ropes]
    norm = of(normed[0], Norm) if normed else Norm(0.0, rope.width)
    alike = len(normed) != 1 and norm.width == rope.width and all(op.attributes == norm for op in normed)
    if not alike or None in linears or ropes[1].attributes != rope:
        return None
    taken = [each for each in (query, key, value, *norms, *linears) if each is not None]
    packed = uses.packed(*taken[-2:], value)
    if packed is None:
        return None
    heads = uses.widths[ropes[0].outputs[0]] // rope.width
    attributes = RopeCache(cache, heads, uses.graph.caches[cache].heads, rope, norm.eps, norm.wide)
    weights = tuple(weight for op in normed for weight in op.weights)
    fused = Op(OpKind.ROPE_CACHE, packed.outputs, ropes[0].outputs, weights, attributes=attributes)
    return _Found(at, frozenset({at, *taken}), (packed, fused))


def _query(uses: _Uses, write: int, cache: int) -> int | None:
    """The rope of the queries that attend over `cache` behind its writing, and that nobody reads before."""
    for op in uses.graph.ops[write:]:
        if op.kind is OpKind.PAGED_ATTENTION and op.cache == cache:
            return uses.maker(op.inputs[0], OpKind.ROPE)
    return None


_RULES: dict[OpKind, tuple[OpKind, Rule]] = {
    OpKind.ADD_RMS_NORM: (OpKind.ADD, _add_rms_norm),
    OpKind.SILU_MUL: (OpKind.MUL, _silu_mul),
    OpKind.ROPE_CACHE: (OpKind.CACHE_WRITE, _rope_cache),
}

_ROW_WISE = (
    *(OpKind.RMS_NORM, OpKind.ADD_RMS_NORM, OpKind.LINEAR, OpKind.SILU_MUL, OpKind.ALL_REDUCE, OpKind.ALL_GATHER),
    *(
        OpKind.SCALE,
        OpKind.SOFT_CAP,
        OpKind.ADD,
        OpKind.MUL,
        OpKind.SILU,
        OpKind.SIGMOID,
        OpKind.RELU,
        OpKind.GELU,
        OpKind.GELU_TANH,
        OpKind.LAYER_NORM,
        OpKind.HEAD_LINEAR,
        OpKind.ROUTE,
        OpKind.EXPERTS,
    ),
)


_MIXING = (OpKind.PAGED_ATTENTION, OpKind.LATENT_ATTENTION, OpKind.CAUSAL_CONV, OpKind.DELTA_RULE, OpKind.SSM_SCAN)


def select_early(graph: KernelGraph) -> KernelGraph:
    """The same logits with rows selected right behind the last op that reads others; the graph itself if that can't be.

    Outputs are then what that op makes of all rows, which is finite only where they are, and the logits.
    """
    ops = graph.ops
    last = max((i for i, op in enumerate(ops) if op.kind in _MIXING), default=None)
    selects = [op for op in ops if op.kind is OpKind.SELECT_ROWS]
    if last is None or len(selects) != 1:
        return graph
    tail = [op for op in ops[last + 1 :] if op is not selects[0]]
    made = {value for op in tail for value in op.outputs}
    if any(op.kind not in _ROW_WISE for op in tail) or selects[0].inputs[0] not in made:
        return graph
    entering = sorted({value for op in tail for value in op.inputs} - made - set(selects[0].outputs))
    widths = list(graph.widths)
    renamed = {selects[0].outputs[0]: selects[0].inputs[0]}
    early = []
    for value in entering:
        renamed[value] = len(widths)
        widths.append(widths[value])
        early.append(Op(OpKind.SELECT_ROWS, (value,), (renamed[value],)))
    moved = [replace(op, inputs=tuple(renamed.get(value, value) for value in op.inputs)) for op in tail]
    outputs = ops[last].outputs[0], renamed.get(graph.logits, graph.logits)
    return compacted(replace(graph, ops=(*ops[: last + 1], *early, *moved), widths=tuple(widths), outputs=outputs))
