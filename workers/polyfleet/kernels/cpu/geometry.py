"""What the CPU library needs to know of a graph's heads and positions: one answer for all layers. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import Attention, Op, OpKind, Rope, RopeCache, of, without_cache

MAX_HEAD_DIM = 1024
KINDS = frozenset(
    {
        *(OpKind.EMBEDDING, OpKind.RMS_NORM, OpKind.ADD_RMS_NORM, OpKind.LINEAR, OpKind.ROPE_CACHE),
        *(OpKind.PAGED_ATTENTION, OpKind.SILU_MUL, OpKind.SELECT_ROWS, OpKind.ADD, OpKind.MUL, OpKind.SILU),
        *(OpKind.RELU, OpKind.GELU, OpKind.GELU_TANH, OpKind.LAYER_NORM, OpKind.ARGMAX),
    }
)
NO_ATTENTION = Attention(0, heads=1, kv_heads=1, width=2, scale=1.0)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Geometry:
    """Attributes that all ops of a graph share."""

    num_caches: int
    attention: Attention
    rope: Rope

    @classmethod
    def of(cls, graph: KernelGraph) -> "Geometry":
        """Raises ValueError, in one sentence, for a graph that the library can't run."""
        for op in graph.ops:
            if op.kind not in KINDS:
                raise ValueError(f"the CPU library has no {op.kind.value}")
        attention = _same(graph, (OpKind.PAGED_ATTENTION,), Attention, NO_ATTENTION)
        width = attention.width
        if width % 2 or width > MAX_HEAD_DIM:
            raise ValueError(f"heads of {width} columns are not even or over {MAX_HEAD_DIM}")
        no_rope = RopeCache(0, attention.heads, attention.kv_heads, Rope(width, (0.0,) * (width // 2)))
        both = _same(graph, (OpKind.ROPE_CACHE,), RopeCache, no_rope)
        if (both.heads, both.kv_heads, both.rope.width) != (attention.heads, attention.kv_heads, width):
            raise ValueError("the CPU library needs the same heads in rope_cache and paged_attention")
        return cls(max(1, len(graph.caches)), attention, both.rope)


def _same(graph: KernelGraph, kinds: Iterable[OpKind], kind: type[_T], default: _T) -> _T:
    """The attributes of all ops of these kinds, whichever cache they name."""
    ops: list[Op] = [op for op in graph.ops if op.kind in kinds]
    found: set[Any] = {without_cache(op) for op in ops}
    if len(found) > 1:
        raise ValueError(f"the CPU library needs {ops[0].kind.value} to be the same in all layers")
    return of(ops[0], kind) if ops else default
