"""Implementations of the ops that ranks of a group do together."""

from polyfleet.graph.ops import Op, OpKind
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.dispatch import Implementation, Kernel
from polyfleet.kernels.ranks import Ranks


def bind_all_reduce(op: Op, context: KernelContext) -> Kernel:
    """x -> the sum over ranks."""
    ranks = _ranks(context)
    return lambda step, x: ranks.all_reduce(x)


def bind_all_gather(op: Op, context: KernelContext) -> Kernel:
    """x -> all ranks' x, side by side."""
    ranks = _ranks(context)
    return lambda step, x: ranks.all_gather(x)


def _ranks(context: KernelContext) -> Ranks:
    if context.ranks is None:
        raise ValueError("a rank's graph is computed in a group")
    return context.ranks


COLLECTIVE = (
    Implementation(OpKind.ALL_REDUCE, "reference", bind_all_reduce, capturable=True),
    Implementation(OpKind.ALL_GATHER, "reference", bind_all_gather, capturable=True),
)
