# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
"""Low-rank adapters of steps with few rows: `low` = down @ x of each row, and up @ low inside the product behind it.

Of each row its own program reads its adapter's matrix: few rows seldom share one. Nothing depends on who else is there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from polyfleet.graph.ops import Op
from polyfleet.kernels.adapting import tables_of
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.dispatch import Kernel
from polyfleet.kernels.step import Step
from polyfleet.kernels.triton.chaining import gdc_launch_dependents, gdc_wait
from polyfleet.kernels.triton.tuning import tuning

LINES, COLUMNS = 4, 1024  # of `down`, of a program: at once
LIVE = 8192  # numbers of `up` that a program of a product has at once


@triton.jit
def shrink_row_kernel(
    x, down, adapters, low,
    K: tl.constexpr, ALL: tl.constexpr, LINES: tl.constexpr, COLUMNS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """`low` [rows, ALL] float32: of one row some of the ALL lines of its adapter's `down` [adapters, ALL, K]."""
    row = tl.program_id(0).to(tl.int64)
    adapter = tl.load(adapters + row).to(tl.int64)
    line, column = tl.program_id(1) * LINES + tl.arange(0, LINES), tl.arange(0, COLUMNS)
    inside = (line < ALL) & (adapter >= 0)
    matrix = down + (adapter * ALL + line)[:, None] * K + column[None, :]
    if CHAINED:
        piece = tl.arange(0, triton.next_power_of_2(K // 64 + 1)) * 64
        lines = down + tl.where(inside, adapter * ALL + line, 0)[:, None] * K + tl.where(piece < K, piece, 0)[None, :]
        fetch: tl.constexpr = "prefetch.global.L2 [$1]; mov.u32 $0, 0;"
        tl.inline_asm_elementwise(fetch, "=r,l", [lines], dtype=tl.int32, is_pure=False, pack=1)
        gdc_wait()
        gdc_launch_dependents()
    total = tl.zeros([LINES, COLUMNS], tl.float32)
    for start in range(0, K, COLUMNS):
        there = column < K - start
        words = tl.load(matrix + start, mask=inside[:, None] & there[None, :], other=0.0)
        values = tl.load(x + row * K + start + column, mask=there, other=0.0)
        total += words.to(tl.float32) * values.to(tl.float32)[None, :]
    tl.store(low + row * ALL + line, tl.sum(total, 1), mask=line < ALL)


@triton.jit
def fetch_up(up, adapters, output, row, rows, N: tl.constexpr, RANK: tl.constexpr):
    """Have what `grown_of` will read on its way."""
    adapter = tl.load(adapters + row, mask=row < rows, other=-1).to(tl.int64)
    lines = up + (tl.where(adapter < 0, 0, adapter)[None, :] * N + output[:, None]) * RANK
    fetch: tl.constexpr = "prefetch.global.L2 [$1]; mov.u32 $0, 0;"
    tl.inline_asm_elementwise(fetch, "=r,l", [lines], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def grown_of(
    up, low, adapters, output, inside, row, rows,
    N: tl.constexpr, RANK: tl.constexpr, RANKS: tl.constexpr, SECOND: tl.constexpr, THIRD: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """up @ low [BLOCK, ROWS] of the adapter of each row, RANKS of its RANK at once."""
    NUMBER: tl.constexpr = 1 + (SECOND < N) + (THIRD < N)
    adapter = tl.load(adapters + row, mask=row < rows, other=-1).to(tl.int64)
    mine = inside[:, None] & (adapter >= 0)[None, :]
    matrix = up + (adapter[None, :] * N + output.to(tl.int64)[:, None]) * RANK
    total = tl.zeros([BLOCK, ROWS], tl.float32)
    for first in tl.static_range(0, RANK, RANKS):
        rank = first + tl.arange(0, RANKS)
        known = (rank < RANK)[None, :] & (adapter >= 0)[:, None]
        wide = tl.load(matrix[:, :, None] + rank[None, None, :], mask=mine[:, :, None] & known[None, :, :], other=0.0)
        line = low + row[:, None] * (NUMBER * RANK) + rank[None, :]
        narrow = tl.load(line, mask=known, other=0.0)[None, :, :]
        if NUMBER > 1:
            second = tl.load(line + RANK, mask=known, other=0.0)[None, :, :]
            narrow = tl.where((output >= SECOND)[:, None, None], second, narrow)
        if NUMBER > 2:
            third = tl.load(line + 2 * RANK, mask=known, other=0.0)[None, :, :]
            narrow = tl.where((output >= THIRD)[:, None, None], third, narrow)
        total += tl.sum(wide.to(tl.float32) * narrow, 2)
    return total


@dataclass(frozen=True, slots=True)
class Grown:
    """What a product's rows get beside it, see `grown_of`."""

    low: Tensor | None = None  # [rows, weights * rank]
    up: Tensor | None = None  # [adapters, Σ rows of weights, rank]
    adapters: Tensor | None = None  # [rows]
    sizes: tuple[int, int, int] = (0, 0, 0)  # the rank, and the first outputs of the second and third weight

    def ranks(self, numbers: int) -> int:
        """That a program with so many products has at once."""
        most: int = triton.next_power_of_2(self.sizes[0])
        return max(1, min(most, LIVE // numbers))

    @property
    def operands(self) -> tuple[Tensor | None, ...]:
        """Those of the kernel, in its order."""
        return self.low, self.up, self.adapters


NOT_GROWN = Grown()


def bind_grown(names: tuple[str, ...], context: KernelContext) -> Callable[..., Grown]:
    """step, low -> what is added to products with these weights; without `low` nothing is."""
    if context.adapters is None or not context.adapters.has(names):
        return lambda step: NOT_GROWN
    (_, up), rows = context.adapters.of(names), context.adapters.rows(names)
    starts = [sum(rows[:number]) for number in range(1, len(rows))]
    second, third = (*starts, sum(rows), sum(rows))[:2]
    sizes = context.adapters.rank, second, third
    return lambda step, *low: Grown(low[0], up, step.adapters, sizes) if low else NOT_GROWN


def bind_shrink(op: Op, context: KernelContext) -> Kernel:
    """x -> low [rows, weights * rank]."""
    tables, tuned = tables_of(context), tuning(context.device)
    down, _ = tables.of(op.weights)
    columns, every = down.shape[2], down.shape[1]
    options: dict[str, Any] = {"launch_pdl": True} if tuned.chained else {}

    def kernel(step: Step, x: Tensor) -> Tensor:
        x = x.contiguous()
        low = torch.empty((len(x), every), dtype=torch.float32, device=x.device)
        sizes = columns, every, LINES, COLUMNS, tuned.chained
        shrink_row_kernel[(len(x), triton.cdiv(every, LINES))](x, down, step.adapters, low, *sizes, **options)
        return low

    return kernel
