"""Reference implementations of ops that `graph.narrow` makes, in torch, right on any device and in any dtype."""

import torch
from torch import Tensor
from torch.nn import functional as F

from polyfleet.graph.ops import Norm, Op, OpKind, of
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.dispatch import Implementation, Kernel
from polyfleet.kernels.step import Step


def bind_gain(op: Op, context: KernelContext) -> Kernel:
    """x -> x * gain, and the sum of its squares."""
    gain = context.vector(*op.weights)
    return lambda step, x: (x * gain, x.float().square().sum(-1, keepdim=True))


def bind_linear_add(op: Op, context: KernelContext) -> Kernel:
    """x, y -> z, gained, squares."""
    weight, gain = context.dense(*op.weights[:-1]), context.vector(op.weights[-1])

    def kernel(step: Step, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        total = F.linear(x, weight) + y
        return total, total * gain, total.float().square().sum(-1, keepdim=True)

    return kernel


def bind_norm_linear(op: Op, context: KernelContext) -> Kernel:
    """gained, squares -> y."""
    weight, eps = context.dense(*op.weights), of(op, Norm).eps
    bias = context.vector(*op.biases) if op.biases else 0

    def kernel(step: Step, x: Tensor, squares: Tensor) -> Tensor:
        factor = torch.rsqrt(squares.sum(-1, keepdim=True) / x.shape[-1] + eps)
        return (F.linear(x, weight).float() * factor).to(x.dtype) + bias

    return kernel


def bind_norm_silu_mul(op: Op, context: KernelContext) -> Kernel:
    """gained, squares -> y."""
    linear = bind_norm_linear(op, context)

    def kernel(step: Step, x: Tensor, squares: Tensor) -> Tensor:
        gate, up = linear(step, x, squares).chunk(2, dim=-1)
        result: Tensor = F.silu(gate) * up
        return result

    return kernel


NARROW = (
    Implementation(OpKind.GAIN, "reference", bind_gain, capturable=True),
    Implementation(OpKind.LINEAR_ADD, "reference", bind_linear_add, capturable=True),
    Implementation(OpKind.NORM_LINEAR, "reference", bind_norm_linear, capturable=True),
    Implementation(OpKind.NORM_SILU_MUL, "reference", bind_norm_silu_mul, capturable=True),
)
