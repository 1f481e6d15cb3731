"""What the CPU library needs to know of a graph's heads and positions: one answer for all layers, ropes apart. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import Attention, OpKind, Rope, RopeCache, of

MAX_HEAD_DIM = 1024
KINDS = frozenset(
    {
        *(OpKind.EMBEDDING, OpKind.RMS_NORM, OpKind.ADD_RMS_NORM, OpKind.LINEAR, OpKind.ROPE_CACHE),
        *(OpKind.PAGED_ATTENTION, OpKind.SILU_MUL, OpKind.SELECT_ROWS, OpKind.ADD, OpKind.MUL, OpKind.SILU),
        *(OpKind.RELU, OpKind.GELU, OpKind.GELU_TANH, OpKind.LAYER_NORM, OpKind.ARGMAX),
        *(OpKind.SCALE, OpKind.SOFT_CAP, OpKind.ROUTE, OpKind.EXPERTS, OpKind.ROPE),
        *(OpKind.HEAD_LINEAR, OpKind.LATENT_WRITE, OpKind.LATENT_ATTENTION),
        *(OpKind.SIGMOID, OpKind.CAUSAL_CONV, OpKind.DELTA_RULE, OpKind.SSM_SCAN, OpKind.CACHE_WRITE),
    }
)
ATTENTIONS = (OpKind.PAGED_ATTENTION, OpKind.LATENT_ATTENTION)
NO_ATTENTION = Attention(0, heads=1, kv_heads=1, width=2, scale=1.0)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Geometry:
    """Attributes that all ops of a graph share, and its ropes."""

    num_caches: int
    attention: Attention  # of whatever window and cap
    ropes: tuple[Rope, ...]
    states: tuple[int, ...] = ()  # numbers of each

    @classmethod
    def of(cls, graph: KernelGraph) -> "Geometry":
        """Raises ValueError, in one sentence, for a graph that the library can't run."""
        for op in graph.ops:
            if op.kind not in KINDS:
                raise ValueError(f"the CPU library has no {op.kind.value} as this model uses it")
        found = [of(op, Attention) for op in graph.ops if op.kind in ATTENTIONS]
        attention = _same("attention", (replace(each, cache=0, window=0, soft_cap=0.0) for each in found))
        attention = attention or NO_ATTENTION
        width = attention.width
        if not attention.causal and any(each.window for each in found):
            raise ValueError("the CPU library has no windows without causality")
        if width % 2 or width > MAX_HEAD_DIM:
            raise ValueError(f"heads of {width} columns are not even or over {MAX_HEAD_DIM}")
        both = [of(op, RopeCache) for op in graph.ops if op.kind is OpKind.ROPE_CACHE]
        heads = _same("rope_cache", ((each.heads, each.kv_heads, each.rope.width) for each in both))
        if heads not in (None, (attention.heads, attention.kv_heads, width)):
            raise ValueError("the CPU library needs the same heads in rope_cache and paged_attention")
        turning = [*(each.rope for each in both), *(of(op, Rope) for op in graph.ops if op.kind is OpKind.ROPE)]
        if any(rope.width > width for rope in turning):
            raise ValueError(f"the CPU library turns no heads that are wider than attention's {width} columns")
        ropes = tuple(dict.fromkeys(turning)) or (Rope(width, (0.0,) * (width // 2)),)
        return cls(max(1, len(graph.caches)), attention, ropes, tuple(each.width for each in graph.states))


def _same(op: str, found: Iterable[_T]) -> _T | None:
    """The one that all are; None where there are none."""
    different = set(found)
    if len(different) > 1:
        raise ValueError(f"the CPU library needs {op} to be the same in all layers")
    return different.pop() if different else None
