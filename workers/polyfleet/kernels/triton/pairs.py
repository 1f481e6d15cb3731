# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
"""Rows as pairs of bytes, with which the matrix unit meets weights of 8 bits as they are.

A number is unit * (high + low / LOWER), both e4m3: together they are as exact as bfloat16, so that only weights are
rounded.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polyfleet.kernels.triton.chaining import gdc_launch_dependents, gdc_wait

LOWER = tl.constexpr(16.0)  # what high leaves is at most a 16th of it
LARGEST = tl.constexpr(448.0)  # of e4m3


@triton.jit
def rounded(wide):
    """To as many bits as e4m3 has, in float32: what is made of it is then exact, and can be counted on.

    Triton 3.6 reads its own e4m3 numbers back wrongly where a thread has several.
    """
    bits = wide.to(tl.int32, bitcast=True)
    return ((bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000).to(tl.float32, bitcast=True)


@triton.jit
def pair_kernel(x, out, units, rows, K: tl.constexpr, SPAN: tl.constexpr, PADDED: tl.constexpr, CHAINED: tl.constexpr):
    """One row of x [rows, K] to `out` [2, rows, K], in the order in which packed words have their columns."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, PADDED)
    column = place // (4 * SPAN) * (4 * SPAN) + place % 4 * SPAN + place % (4 * SPAN) // 4
    if CHAINED:
        gdc_launch_dependents()
        gdc_wait()
    wide = tl.load(x + row * K + column, mask=place < K, other=0.0).to(tl.float32)
    unit = tl.maximum(tl.max(tl.abs(wide), 0), 1e-30) / LARGEST
    wide = wide / unit
    high = rounded(wide)
    low = rounded((wide - high) * LOWER)
    tl.store(out + row * K + place, high.to(tl.float8e4nv), mask=place < K)
    tl.store(out + (rows + row) * K + place, low.to(tl.float8e4nv), mask=place < K)
    tl.store(units + row, unit)


def pairs(x: Tensor, span: int, *, chained: bool) -> tuple[Tensor, Tensor]:
    """Of x [rows, K] pairs [2, rows, K] in e4m3, columns as in words of `span`, and units [rows] in float32."""
    rows, columns = x.shape
    out = torch.empty((2, rows, columns), dtype=torch.float8_e4m3fn, device=x.device)
    units = torch.empty(rows, dtype=torch.float32, device=x.device)
    options = {"launch_pdl": True} if chained else {}
    pair_kernel[(rows,)](
        *(x, out, units, rows, columns, span, triton.next_power_of_2(columns), chained), num_warps=8, **options
    )
    return out, units
