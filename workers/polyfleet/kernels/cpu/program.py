"""From a KernelGraph to the flat program that the CPU library runs: what is fused, what shares a buffer. Pure.

Fusions, each only where nobody else reads the value in between:
    norm -> linear                 the linear normalises its rows as they enter
    linear(gate, up) -> silu_mul   gate and up rows are computed side by side
    linear(q, k, v) -> rope_cache  each head is rotated and cached as it is computed
    paged_attention -> select_rows only the selected rows attend
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from polyfleet.graph.adapt import lowered
from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import (
    Attention,
    Convolution,
    DeltaRule,
    Experts,
    Factor,
    Heads,
    Lookup,
    Norm,
    Op,
    OpKind,
    Rope,
    RopeCache,
    Route,
    StateSpace,
    of,
)
from polyfleet.kernels.cpu.buffers import Buffers, place
from polyfleet.kernels.cpu.stages import GROUP, NONE, Epilogue, Stage, StageKind

PLAIN = frozenset({"silu", "silu_mul", "sigmoid", "relu", "gelu", "gelu_tanh", "argmax"})  # ops of one value, no more

Variant = tuple[bool, bool]  # of a program: whether it keeps hidden states, and whether it computes with adapters
RowCount = Callable[[str], int]  # rows (outputs) of a weight by its name


@dataclass(frozen=True, slots=True)
class Program:
    """Stages over buffers, of which some hold the graph's inputs, and some its outputs or the last of them alone."""

    stages: tuple[Stage, ...]
    outputs: tuple[int, ...]
    inputs: tuple[int, ...] = ()


def programs(
    graph: KernelGraph, rows: RowCount, *, adapters: bool = False
) -> tuple[Mapping[Variant, Program], Sequence[int]]:
    """The programs of a graph, those for adapters only if wanted, and the widths of the buffers that they share."""
    buffers = Buffers()
    variants = [(keep, adapt) for adapt in ((False, True) if adapters else (False,)) for keep in (False, True)]
    made = {(keep, adapt): plan(graph, rows, buffers, keep_hidden=keep, adapters=adapt) for keep, adapt in variants}
    return made, buffers.widths


def plan(graph: KernelGraph, rows: RowCount, buffers: Buffers, *, keep_hidden: bool, adapters: bool = False) -> Program:
    """The program of a graph; without `keep_hidden` it finishes only the last output, of a model the wanted logits."""
    graph = lowered(graph, every_row=keep_hidden, adapters=adapters)
    kept = graph.outputs if keep_hidden else graph.outputs[-1:]
    stages, placed = place(to_stages(graph, rows, kept), graph.widths, kept, buffers, graph.inputs)
    return Program(stages, tuple(placed[value] for value in kept), tuple(placed[value] for value in graph.inputs))


def to_stages(graph: KernelGraph, rows: RowCount, kept: Iterable[int]) -> list[Stage]:
    """Stages over the graph's values; `kept` values must be there at the end."""
    readers: dict[int, list[Op | None]] = {value: [None] for value in kept}
    for op in graph.ops:
        for value in op.inputs:
            readers.setdefault(value, []).append(op)
    stages: list[Stage] = []
    norms: dict[int, Stage] = {}  # by normalised value: norms that wait for the linear that alone reads it
    skipped: set[int] = set()  # outputs of ops that a linear or attention does
    selected: set[int] = set()  # values whose rows are the selected ones
    for op in graph.ops:
        if op.kind is OpKind.SELECT_ROWS or any(value in selected for value in op.inputs):
            selected.update(op.outputs)
        if _output(op) in skipped:
            continue
        early = [value for value, norm in norms.items() if norm.residual_out in op.inputs]
        stages += [norms.pop(value) for value in early]  # a sum that is read before the linear would make it
        only = readers.get(_output(op), [])
        after = only[0] if len(only) == 1 else None
        stage = replace(_stage(op), selected=op.inputs[0] in selected)
        if stage.kind is StageKind.NORM and not stage.width and after is not None and after.kind is OpKind.LINEAR:
            norms[op.outputs[0]] = stage
            continue
        if norm := norms.pop(stage.input, None):
            stage = replace(norm, kind=stage.kind, output=stage.output, weights=stage.weights, biases=stage.biases)
        if after is not None and (joined := _joined(stage, after, rows)):
            stage = joined
            skipped.add(stage.output)
        stages.append(stage)
    return stages


def _joined(stage: Stage, after: Op, rows: RowCount) -> Stage | None:
    """The stage with the op behind it done as its results come, where that can be."""
    output = _output(after)
    if stage.kind is StageKind.ATTENTION and after.kind is OpKind.SELECT_ROWS:
        return replace(stage, output=output, selected=True)
    if stage.kind is not StageKind.LINEAR:
        return None
    counts = [rows(weight) for weight in stage.weights]
    if after.kind is OpKind.SILU_MUL and len(counts) == 2 and counts[0] == counts[1]:
        return replace(stage, output=output, epilogue=Epilogue.SILU_MUL)
    if after.kind is OpKind.ROPE_CACHE:
        both = of(after, RopeCache)
        if both.rope.width % GROUP == 0 and all(count % both.rope.width == 0 for count in counts):
            return _cached(replace(stage, output=output, epilogue=Epilogue.ROPE_CACHE), after)
    return None


def _stage(op: Op) -> Stage:
    """One op alone."""
    source, output, layer = op.inputs[0], _output(op), NONE if op.cache is None else op.cache
    match op.kind:
        case OpKind.ADD | OpKind.MUL:
            return Stage(StageKind[op.kind.name], source, output, op.inputs[1])
        case _ if op.kind.value in PLAIN:
            return Stage(StageKind[op.kind.name], source, output)
        case OpKind.SCALE | OpKind.SOFT_CAP:
            return Stage(StageKind[op.kind.name], source, output, factor=of(op, Factor).factor)
        case OpKind.LAYER_NORM:
            return Stage(StageKind.LAYER_NORM, source, output, norm=op.weights[0], eps=_eps(op), weights=op.biases)
        case OpKind.EMBEDDING:
            if op.attributes is None:
                return Stage(StageKind.EMBEDDING, NONE, output, weights=op.weights)
            lookup = of(op, Lookup)
            stage = Stage(StageKind.LOOKUP, NONE, output, weights=op.weights)
            return replace(stage, first_row=lookup.first, width=int(lookup.positions))
        case OpKind.RMS_NORM:
            return Stage(StageKind.NORM, source, output, norm=op.weights[0], eps=_eps(op), width=of(op, Norm).width)
        case OpKind.ADD_RMS_NORM:
            ends = op.inputs[1], op.outputs[1]
            return Stage(StageKind.NORM, source, output, *ends, norm=op.weights[0], eps=_eps(op))
        case OpKind.LINEAR:
            return Stage(StageKind.LINEAR, source, output, weights=op.weights, biases=op.biases)
        case OpKind.ROPE_CACHE:
            return _cached(Stage(StageKind.ROPE_CACHE, source, output), op)
        case OpKind.PAGED_ATTENTION:
            attention = of(op, Attention)
            stage = Stage(StageKind.ATTENTION, source, output, layer=layer)
            return replace(stage, window=attention.window, factor=attention.soft_cap, sinks="".join(op.weights))
        case OpKind.ADAPT:
            return Stage(StageKind.ADAPT, source, output, op.inputs[1], weights=op.weights)
        case OpKind.SELECT_ROWS:
            return Stage(StageKind.SELECT, source, output)
    return _stage_of_parts(op)


def _stage_of_parts(op: Op) -> Stage:
    """One op of latent attention, of a mixture of experts, or with a state."""
    source, output, layer = op.inputs[0], _output(op), NONE if op.cache is None else op.cache
    match op.kind:
        case OpKind.ROPE:
            rope = of(op, Rope)
            return Stage(StageKind.ROPE, source, output, rope=rope, width=rope.width)
        case OpKind.HEAD_LINEAR:
            return Stage(StageKind.HEAD_LINEAR, source, output, weights=op.weights, width=of(op, Heads).count)
        case OpKind.CACHE_WRITE | OpKind.LATENT_WRITE:
            return Stage(StageKind[op.kind.name], source, NONE, op.inputs[1], layer=layer)
        case OpKind.LATENT_ATTENTION:
            return Stage(StageKind.ATTENTION, source, output, op.inputs[1], layer=layer)
        case OpKind.ROUTE:
            route = of(op, Route)
            return Stage(StageKind.ROUTE, source, output, weights=op.weights, route=route, factor=route.scale)
        case OpKind.EXPERTS:
            experts = of(op, Experts)
            stage = Stage(StageKind.EXPERTS, source, output, op.inputs[1], weights=op.weights, biases=op.biases)
            return replace(stage, experts=experts, factor=experts.limit)
        case OpKind.CAUSAL_CONV:
            conv = of(op, Convolution)
            stage = Stage(StageKind.CAUSAL_CONV, source, output, norm=op.weights[0], weights=op.biases)
            return replace(stage, layer=conv.state, width=conv.taps)
        case OpKind.DELTA_RULE:
            rule, (decay, shift) = of(op, DeltaRule), op.weights
            stage = Stage(StageKind.DELTA_RULE, source, output, op.inputs[1], norm=decay, weights=(shift,))
            return replace(stage, layer=rule.state, rule=rule)
        case OpKind.SSM_SCAN:
            space, (decay, *others) = of(op, StateSpace), op.weights
            stage = Stage(StageKind.SSM_SCAN, source, output, op.inputs[1], norm=decay, weights=tuple(others))
            return replace(stage, layer=space.state, rule=space)
    raise ValueError(f"the CPU library has no {op.kind.value}")


def _cached(stage: Stage, op: Op) -> Stage:
    """The stage with the norms, the rotation and the cache of a rope_cache."""
    both = of(op, RopeCache)
    return replace(stage, layer=both.cache, rope=both.rope, head_norms=op.weights, head_eps=both.eps)


def _output(op: Op) -> int:
    return op.outputs[0] if op.outputs else NONE


def _eps(op: Op) -> float:
    return of(op, Norm).eps
