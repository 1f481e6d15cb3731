# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
"""Low-rank adapters of steps with few rows: `low` = down @ x of each row and up @ low, both inside a product's launch.

The launch's first programs make `low` (`shrink_rows`), while all others make the product and only then wait for it
(`grown_of`). Of each row its own programs read its adapter's matrix: few rows seldom share one. All rows' `up` lie side
by side as more columns of the weights would, and meet a matrix that has each row's `low` in the row's own column.

Nobody waits for ever: programs begin in the order of their numbers, so those that are waited for began before. They
wait for the kernels before theirs alone, of which none waits for one behind it: these end, and leave room. Kernels
behind take none of it, for they begin once all programs of this one have begun (`gdc_launch_dependents`).
A product whose columns are split has shrinking programs in front of each split's others. They also began before: a
program waits only where it is the last of all splits' with its outputs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from polyfleet.graph.ops import Op
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.dispatch import Kernel
from polyfleet.kernels.step import Step
from polyfleet.kernels.torch.adapting import tables_of
from polyfleet.kernels.triton.chaining import gdc_launch_dependents, gdc_wait

LINES = 8  # of `down`, of one row: at once
COLUMNS = 2048  # of those at most: at once
PROGRAMS = 128  # that shrink, at most: about one a multiprocessor, so that products find room beside them
THREADS = tl.constexpr(256)  # of a program, at most
LIVE = {2: 4096, 4: 1024}  # numbers of `up` that a warp of a product has at once, by their bytes: of shared memory


@triton.jit
def shrink_rows(
    x, down, adapters, low, first, every, rows,
    K: tl.constexpr, ALL: tl.constexpr, LINES: tl.constexpr, COLUMNS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Of `low` [rows, ALL] = down @ x, pieces of LINES of one row: each `every`th from `first` on. No number is NaN."""
    PIECES: tl.constexpr = (ALL + LINES - 1) // LINES
    column = tl.arange(0, COLUMNS)
    words = _words(down, adapters, first, 0, column, rows, K, ALL, LINES)
    if CHAINED:
        if K > COLUMNS:
            _fetch_down(down, adapters, first, rows, K, ALL, LINES)
        gdc_wait()
        gdc_launch_dependents()
    for piece in range(first, rows * PIECES, every):
        row, line = piece // PIECES, piece % PIECES * LINES + tl.arange(0, LINES)
        total = tl.zeros([LINES, COLUMNS], tl.float32)
        for start in range(0, K, COLUMNS):
            values = tl.load(x + row * K + start + column, mask=column < K - start, other=0.0)
            total += words.to(tl.float32) * values.to(tl.float32)[None, :]
            if K > COLUMNS:
                words = _words(down, adapters, piece, start + COLUMNS, column, rows, K, ALL, LINES)
        found = tl.sum(total, 1)
        found = tl.where(found != found, float("inf"), found)
        tl.store(low + row * ALL + line, found, mask=line < ALL)
        words = _words(down, adapters, piece + every, 0, column, rows, K, ALL, LINES)


@triton.jit
def _words(down, adapters, piece, start, column, rows, K: tl.constexpr, ALL: tl.constexpr, LINES: tl.constexpr):
    """[LINES, columns] of `down` [adapters, ALL, K] from column `start` on, 0 where a piece has none."""
    PIECES: tl.constexpr = (ALL + LINES - 1) // LINES
    row, line = piece // PIECES, piece % PIECES * LINES + tl.arange(0, LINES)
    adapter = tl.load(adapters + row, mask=row < rows, other=-1).to(tl.int64)
    there = ((line < ALL) & (adapter >= 0))[:, None] & (column < K - start)[None, :]
    return tl.load(down + (adapter * ALL + line)[:, None] * K + start + column[None, :], mask=there, other=0.0)


@triton.jit
def _fetch_down(down, adapters, piece, rows, K: tl.constexpr, ALL: tl.constexpr, LINES: tl.constexpr):
    """Have all of a piece's lines on their way."""
    PIECES: tl.constexpr = (ALL + LINES - 1) // LINES
    row, line = piece // PIECES, piece % PIECES * LINES + tl.arange(0, LINES)
    adapter = tl.load(adapters + row, mask=row < rows, other=-1).to(tl.int64)
    inside, column = (line < ALL) & (adapter >= 0), tl.arange(0, triton.next_power_of_2(K // 64 + 1)) * 64
    lines = down + tl.where(inside, adapter * ALL + line, 0)[:, None] * K + tl.where(column < K, column, 0)[None, :]
    fetch: tl.constexpr = "prefetch.global.L2 [$1]; mov.u32 $0, 0;"
    tl.inline_asm_elementwise(fetch, "=r,l", [lines], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def upper_of(
    up, adapters, output, inside, rows, first,
    N: tl.constexpr, RANK: tl.constexpr, RANKS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """[BLOCK, ROWS * RANKS]: RANKS ranks of each row's matrix from `first` on, side by side; 0 where there is none."""
    place = tl.arange(0, ROWS * RANKS)
    row, rank = place // RANKS, first + place % RANKS
    adapter = tl.load(adapters + row, mask=row < rows, other=-1).to(tl.int64)
    mine = inside[:, None] & ((adapter >= 0) & (rank < RANK))[None, :]
    matrix = up + (adapter[None, :] * N + output.to(tl.int64)[:, None]) * RANK + rank[None, :]
    return tl.load(matrix, mask=mine, other=0.0)


@triton.jit
def grown_of(
    total, wide, up, low, adapters, output, inside, lowest, highest, rows,
    N: tl.constexpr, RANK: tl.constexpr, RANKS: tl.constexpr, SECOND: tl.constexpr, THIRD: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """total + up @ low [BLOCK, ROWS] of the adapter of each row, as one product whose columns are all rows' ranks.

    `wide` are the first ranks of `up`; all outputs are of the weights `lowest` ... `highest`. Waits for what
    `shrink_rows` makes: `low` is all NaN when a step begins, and each of its numbers says by itself that it is there:
    nothing is counted, and nothing has to be put back (Lamport, "Concurrent reading and writing of clocks").
    """
    NUMBER: tl.constexpr = 1 + (SECOND < N) + (THIRD < N)
    place = tl.arange(0, ROWS * RANKS)
    row, rank = place // RANKS, place % RANKS
    adapted = tl.load(adapters + row, mask=row < rows, other=-1) >= 0
    line, part = low + row * (NUMBER * RANK) + rank, part_of(output, SECOND, THIRD)
    for first in tl.static_range(0, RANK, RANKS):
        known = adapted & (first + rank < RANK)
        for weight in tl.static_range(NUMBER):
            if NUMBER == 1:
                total += _risen(wide, line + first, known, ROWS, RANKS)
            elif (lowest <= weight) & (weight <= highest):
                risen = _risen(wide, line + weight * RANK + first, known, ROWS, RANKS)
                total += tl.where((part == weight)[:, None], risen, 0.0)
        if first + RANKS < RANK:
            wide = upper_of(up, adapters, output, inside, rows, first + RANKS, N, RANK, RANKS, ROWS)
    return total


@triton.jit
def part_of(output, SECOND: tl.constexpr, THIRD: tl.constexpr):
    """Which of the weights an output is of."""
    return (output >= SECOND).to(tl.int32) + (output >= THIRD).to(tl.int32)


@triton.jit
def _risen(wide, line, known, ROWS: tl.constexpr, RANKS: tl.constexpr):
    """Some ranks' share of up @ low, once no number in their line is NaN; 0 where a rank is not known."""
    narrow = tl.full([ROWS * RANKS], 0.0, tl.float32)
    missing = 1
    while missing > 0:
        narrow = tl.load(line, mask=known, other=0.0, volatile=True)
        missing = tl.max((narrow != narrow).to(tl.int32))
    if ROWS * RANKS < THREADS:  # then several threads have read one number, of whom one may have come too early
        narrow = tl.load(line, mask=known, other=0.0, volatile=True)
    if ROWS == 1:
        return tl.sum(wide.to(tl.float32) * narrow[None, :], 1)[:, None]
    owner = tl.arange(0, ROWS * RANKS) // RANKS
    lines = tl.where(owner[:, None] == tl.arange(0, ROWS)[None, :], narrow.to(wide.dtype)[:, None], 0.0)
    return tl.dot(wide, lines.to(wide.dtype), input_precision="ieee")


@dataclass(frozen=True, slots=True)
class Grown:
    """What a product's rows get beside it, see `grown_of`."""

    low: Tensor | None = None  # [rows, weights * rank], NaN
    down: Tensor | None = None  # [adapters, weights * rank, K]
    up: Tensor | None = None  # [adapters, Σ rows of weights, rank]
    adapters: Tensor | None = None  # [rows]
    sizes: tuple[int, int, int] = (0, 0, 0)  # the rank, and the first outputs of the second and third weight

    def at_once(self, numbers: int, warps: int) -> tuple[int, int, int]:
        """Ranks, of a program with so many products and warps; lines and columns of `down`."""
        most = max(2, int(triton.next_power_of_2(self.sizes[0])))
        columns = 1 if self.down is None else min(COLUMNS, triton.next_power_of_2(self.down.shape[2]))
        live = LIVE[2 if self.up is None else self.up.itemsize]
        return max(2, min(most, live * warps // numbers)), LINES, columns

    @property
    def operands(self) -> tuple[Tensor | None, ...]:
        """Those of the kernel, in its order."""
        return self.low, self.down, self.up, self.adapters

    def programs(self, splits: int) -> int:
        """That shrink, for each of the parts into which a product's columns are split."""
        if self.low is None:
            return 0
        rows, every = self.low.shape
        pieces = rows * triton.cdiv(every, LINES)
        return int(triton.cdiv(min(pieces, PROGRAMS), splits))


NOT_GROWN = Grown()


def bind_grown(names: tuple[str, ...], context: KernelContext) -> Callable[..., Grown]:
    """step, low -> what is added to products with these weights; without `low` nothing is."""
    if context.adapters is None or not context.adapters.has(names):
        return lambda step: NOT_GROWN
    (down, up), rows = context.adapters.of(names), context.adapters.rows(names)
    starts = [sum(rows[:number]) for number in range(1, len(rows))]
    second, third = (*starts, sum(rows), sum(rows))[:2]
    sizes = context.adapters.rank, second, third
    return lambda step, *low: Grown(low[0], down, up, step.adapters, sizes) if low else NOT_GROWN


def plan_shrinks(context: KernelContext, step: Step, attributes: Any) -> Tensor:
    """Room for `low` of all of a step's products, [lines of all `down` * rows] of NaN."""
    return torch.full((tables_of(context).all_lines * step.num_rows,), torch.nan, device=context.device)


def bind_shrink(op: Op, context: KernelContext) -> Kernel:
    """x -> room for low [rows, weights * rank], which the product behind fills itself."""
    lines = tables_of(context).lines(op.weights)

    def kernel(room: Tensor, x: Tensor) -> Tensor:
        return room[lines.start * len(x) : lines.stop * len(x)].view(len(x), len(lines))

    return kernel
