"""RMS norms in one call of torch's, which accumulates in float32 in every dtype."""

import torch
from torch import Tensor

from polyfleet.graph.ops import Norm, Op, OpKind, of
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.dispatch import Implementation, Kernel
from polyfleet.kernels.step import Step
from polyfleet.kernels.torch import reference


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Over the last axis in one call, whose weight must be of x's dtype; by several of a wide one."""
    if weight.dtype is x.dtype:
        return torch.rms_norm(x, (len(weight),), weight, eps)
    return reference.rms_norm(x, weight, eps)


def bind_rms_norm(op: Op, context: KernelContext) -> Kernel:
    """x -> y."""
    norm = of(op, Norm)
    weight, eps = context.gain(*op.weights, wide=norm.wide), norm.eps
    if norm.width:
        if len(weight) > norm.width:
            return reference.bind_rms_norm(op, context)
        return lambda step, x: rms_norm(x.unflatten(1, (-1, norm.width)), weight, eps).flatten(1)
    return lambda step, x: rms_norm(x, weight, eps)


def bind_add_rms_norm(op: Op, context: KernelContext) -> Kernel:
    """x, residual -> y, residual'."""
    weight, eps = context.gain(*op.weights, wide=of(op, Norm).wide), of(op, Norm).eps

    def kernel(step: Step, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        total = x + residual
        return rms_norm(total, weight, eps), total

    return kernel


NORMS = (
    Implementation(OpKind.RMS_NORM, "torch", bind_rms_norm, capturable=True, rank=1),
    Implementation(OpKind.ADD_RMS_NORM, "torch", bind_add_rms_norm, capturable=True, rank=1),
)
