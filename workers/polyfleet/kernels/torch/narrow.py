"""Reference implementations of ops that `graph.narrow` makes, in torch, right on any device and in any dtype."""

import torch
from torch import Tensor
from torch.nn import functional as F

from polyfleet.graph.ops import Norm, Op, OpKind, of
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.dispatch import Implementation, Kernel
from polyfleet.kernels.step import Step
from polyfleet.kernels.torch.adapting import bind_grow

PLAIN_INPUTS = 2  # of a product without adapters


def bind_gain(op: Op, context: KernelContext) -> Kernel:
    """x -> x * gain, and the sum of its squares."""
    gain = context.vector(*op.weights)
    return lambda step, x: (x * gain, x.float().square().sum(-1, keepdim=True))


def bind_linear_add(op: Op, context: KernelContext) -> Kernel:
    """x, y -> z, gained, squares."""
    product, gain = _product(op, op.weights[:-1], context), context.vector(op.weights[-1])

    def kernel(step: Step, x: Tensor, y: Tensor, *low: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        total = product(step, x, *low) + y
        return total, total * gain, total.float().square().sum(-1, keepdim=True)

    return kernel


def bind_norm_linear(op: Op, context: KernelContext) -> Kernel:
    """gained, squares -> y."""
    product, eps = _product(op, op.weights, context), of(op, Norm).eps
    bias = context.vector(*op.biases) if op.biases else 0

    def kernel(step: Step, x: Tensor, squares: Tensor, *low: Tensor) -> Tensor:
        factor = torch.rsqrt(squares.sum(-1, keepdim=True) / x.shape[-1] + eps)
        y: Tensor = (product(step, x, *low).float() * factor).to(x.dtype) + bias
        return y

    return kernel


def bind_norm_silu_mul(op: Op, context: KernelContext) -> Kernel:
    """gained, squares -> y."""
    linear = bind_norm_linear(op, context)

    def kernel(step: Step, x: Tensor, squares: Tensor, *low: Tensor) -> Tensor:
        gate, up = linear(step, x, squares, *low).chunk(2, dim=-1)
        result: Tensor = F.silu(gate) * up
        return result

    return kernel


def _product(op: Op, names: tuple[str, ...], context: KernelContext) -> Kernel:
    """x -> x @ Wᵀ; with what a `shrink` made of x, what the rows' adapters add to it too."""
    weight = context.dense(*names)
    grow = bind_grow(names, context) if len(op.inputs) > PLAIN_INPUTS else None

    def product(step: Step, x: Tensor, *low: Tensor) -> Tensor:
        y = F.linear(x, weight)
        return y if grow is None else y + grow(step, *low).to(y.dtype)

    return product


NARROW = (
    Implementation(OpKind.GAIN, "reference", bind_gain, capturable=True),
    Implementation(OpKind.LINEAR_ADD, "reference", bind_linear_add, capturable=True),
    Implementation(OpKind.NORM_LINEAR, "reference", bind_norm_linear, capturable=True),
    Implementation(OpKind.NORM_SILU_MUL, "reference", bind_norm_silu_mul, capturable=True),
)
