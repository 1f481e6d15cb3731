# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
"""Low-rank adapters of steps with few rows: `low` = down @ x of each row and up @ low, both inside a product's launch.

The launch's first programs make `low` (`shrink_rows`), while all others make the product and only then wait for it
(`grown_of`). Of each row its own programs read its adapter's matrix: few rows seldom share one.

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
from polyfleet.kernels.adapting import tables_of
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.dispatch import Kernel
from polyfleet.kernels.step import Step
from polyfleet.kernels.triton.chaining import gdc_launch_dependents, gdc_wait

LINES = 4  # of `down`, of one row: at once
COLUMNS = 2048  # of those at most: at once
PROGRAMS = 128  # that shrink, at most: about one a multiprocessor, so that products find room beside them
LIVE = 8192  # numbers of `up` that a program of a product has at once


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
    """up @ low [BLOCK, ROWS] of the adapter of each row, RANKS of its RANK at once; waits for what `shrink_rows` makes.

    `low` is all NaN when a step begins, and each of its numbers says by itself that it is there: nothing is counted,
    and nothing has to be put back (Lamport, "Concurrent reading and writing of clocks").
    """
    NUMBER: tl.constexpr = 1 + (SECOND < N) + (THIRD < N)
    adapter = tl.load(adapters + row, mask=row < rows, other=-1).to(tl.int64)
    mine = inside[:, None] & (adapter >= 0)[None, :]
    matrix = up + (adapter[None, :] * N + output.to(tl.int64)[:, None]) * RANK
    part = (output >= SECOND).to(tl.int32) + (output >= THIRD).to(tl.int32)
    total = tl.zeros([BLOCK, ROWS], tl.float32)
    rank = tl.arange(0, RANKS)
    line = low + row[:, None] * (NUMBER * RANK) + rank[None, :]
    wide, lowest, highest = _chunk(matrix, mine, rank, 0, RANK), tl.min(part), tl.max(part)
    _wait_for_low(low, adapter, row, NUMBER * RANK)
    for first in tl.static_range(0, RANK, RANKS):
        known = (first + rank < RANK)[None, :] & (adapter >= 0)[:, None]
        for weight in tl.static_range(NUMBER):
            if (lowest <= weight) & (weight <= highest):
                narrow = tl.load(line + weight * RANK + first, mask=known, other=0.0, cache_modifier=".cg")[None, :, :]
                total += tl.where((part == weight)[:, None], tl.sum(wide.to(tl.float32) * narrow, 2), 0.0)
        wide = _chunk(matrix, mine, rank, first + RANKS, RANK)
    return total


@triton.jit
def _chunk(matrix, mine, rank, first, RANK: tl.constexpr):
    """Some ranks of `up`, [BLOCK, ROWS, ranks]; 0 behind the last."""
    inside = mine[:, :, None] & (first + rank < RANK)[None, None, :]
    return tl.load(matrix[:, :, None] + (first + rank)[None, None, :], mask=inside, other=0.0)


@triton.jit
def _wait_for_low(low, adapter, row, ALL: tl.constexpr):
    """Until none of `low` [rows, ALL] is NaN in rows that have an adapter."""
    line = tl.arange(0, triton.next_power_of_2(ALL))
    known = (adapter >= 0)[:, None] & (line < ALL)[None, :]
    missing = 1
    while missing > 0:
        there = tl.load(low + row[:, None] * ALL + line[None, :], mask=known, other=0.0, volatile=True)
        missing = tl.max((there != there).to(tl.int32))


@dataclass(frozen=True, slots=True)
class Grown:
    """What a product's rows get beside it, see `grown_of`."""

    low: Tensor | None = None  # [rows, weights * rank], NaN
    down: Tensor | None = None  # [adapters, weights * rank, K]
    up: Tensor | None = None  # [adapters, Σ rows of weights, rank]
    adapters: Tensor | None = None  # [rows]
    sizes: tuple[int, int, int] = (0, 0, 0)  # the rank, and the first outputs of the second and third weight

    def at_once(self, numbers: int) -> tuple[int, int, int]:
        """Ranks, of a program with so many products; lines and columns of `down`."""
        most = int(triton.next_power_of_2(self.sizes[0]))
        columns = 1 if self.down is None else min(COLUMNS, triton.next_power_of_2(self.down.shape[2]))
        return max(1, min(most, LIVE // numbers)), LINES, columns

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
