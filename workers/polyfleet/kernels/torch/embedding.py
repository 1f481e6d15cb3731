"""The reference of embedding: rows of a table by token id, by position, or one for all."""

from torch import Tensor
from torch.nn import functional as F

from polyfleet.graph.ops import Lookup, Op, OpKind, of
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.dispatch import Implementation, Kernel
from polyfleet.kernels.step import Step


def bind_embedding(op: Op, context: KernelContext) -> Kernel:
    """ids -> x[T, H]."""
    table = context.dense(*op.weights)
    if op.attributes is None:
        return lambda step, ids: _given(step, F.embedding(ids, table))
    lookup = of(op, Lookup)
    if lookup.positions:
        return lambda step, ids: F.embedding(step.positions + lookup.first, table)
    return lambda step, ids: table[lookup.first].expand(len(ids), -1)


def _given(step: Step, x: Tensor) -> Tensor:
    return x if step.given is None else x.index_copy(0, *step.given)


EMBEDDING = Implementation(OpKind.EMBEDDING, "reference", bind_embedding, capturable=True)
