# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
"""silu(gate) * up of rows that hold both side by side, in one launch."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polyfleet.graph.ops import Op
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.dispatch import Kernel
from polyfleet.kernels.step import Step

COLUMNS = 1024  # of a program


@triton.jit
def silu_mul_kernel(gate_up, out, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """Of one row, COLUMNS of its WIDTH."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < WIDTH
    gate = tl.load(gate_up + row * 2 * WIDTH + columns, mask=inside, other=0.0)
    up = tl.load(gate_up + row * 2 * WIDTH + WIDTH + columns, mask=inside, other=0.0)
    wide = gate.to(tl.float32)
    # The product is of numbers in the computing dtype, as its definition says.
    activated = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype)
    tl.store(out + row * WIDTH + columns, activated * up, mask=inside)


def bind_silu_mul(op: Op, context: KernelContext) -> Kernel:
    """[gate, up] -> silu(gate) * up."""

    def kernel(step: Step, gate_up: Tensor) -> Tensor:
        gate_up = gate_up.contiguous()
        width = gate_up.shape[-1] // 2
        out = torch.empty((len(gate_up), width), dtype=gate_up.dtype, device=gate_up.device)
        silu_mul_kernel[(len(gate_up), triton.cdiv(width, COLUMNS))](gate_up, out, width, COLUMNS)
        return out

    return kernel
