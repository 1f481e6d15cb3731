# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
"""rms_norm, and the same behind an addition: one program a row, one launch."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polyfleet.graph.ops import Norm, Op, of
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.dispatch import Kernel
from polyfleet.kernels.step import Step
from polyfleet.kernels.torch import norms


@triton.jit
def norm_kernel(x, residual, weight, out, total, eps, WIDTH: tl.constexpr, PADDED: tl.constexpr, ADD: tl.constexpr):
    """`total` is x + residual in their dtype, `out` its norm; without ADD, out is the norm of x."""
    columns = tl.arange(0, PADDED)
    inside = columns < WIDTH
    first = tl.program_id(0).to(tl.int64) * WIDTH
    values = tl.load(x + first + columns, mask=inside, other=0.0)
    if ADD:
        values = values + tl.load(residual + first + columns, mask=inside, other=0.0)
        tl.store(total + first + columns, values, mask=inside)
    wide = values.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / WIDTH + eps)
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + first + columns, (wide * scale * gain).to(values.dtype), mask=inside)


def _launch(x: Tensor, residual: Tensor, weight: Tensor, out: Tensor, total: Tensor, eps: float, *, add: bool) -> None:
    width = x.shape[-1]
    padded = triton.next_power_of_2(width)
    warps = min(8, max(1, padded // 512))
    norm_kernel[(len(x),)](x, residual, weight, out, total, eps, width, padded, add, num_warps=warps)


def bind_rms_norm(op: Op, context: KernelContext) -> Kernel:
    """x -> y."""
    weight, eps = context.gain(*op.weights, wide=of(op, Norm).wide), of(op, Norm).eps
    if of(op, Norm).width:
        return norms.bind_rms_norm(op, context)

    def kernel(step: Step, x: Tensor) -> Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        _launch(x, x, weight, out, out, eps, add=False)
        return out

    return kernel


def bind_add_rms_norm(op: Op, context: KernelContext) -> Kernel:
    """x, residual -> y, residual'."""
    weight, eps = context.gain(*op.weights, wide=of(op, Norm).wide), of(op, Norm).eps

    def kernel(step: Step, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        x, residual = x.contiguous(), residual.contiguous()
        out, total = torch.empty_like(x), torch.empty_like(x)
        _launch(x, residual, weight, out, total, eps, add=True)
        return out, total

    return kernel
