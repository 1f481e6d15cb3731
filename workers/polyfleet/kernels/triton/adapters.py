# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
"""Low-rank adapters of a step's rows: y + up @ (down @ x), in two launches for all linears that share an x.

Rows are sorted by adapter, once a step, and cut into tiles of one adapter each, so that each adapter's matrices are
read once. The tiles' number is bounded by sizes alone and they are made on the device: a graph holds for whatever
adapters its rows have. Sums are cut by columns, and added up in order: a row is the same in any company.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
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

FEW, MANY = 16, 64  # rows of a tile
FEW_ROWS = 512  # of a step, up to which its tiles have few
COLUMNS = 128  # of x at once
SHARE, MOST_SPLITS = 1024, 8  # columns of x that a program sums up at least, and parts of them all at most
OUTPUTS = 256  # of a program
LEAST = 16  # of a matrix product


@dataclass(frozen=True, slots=True)
class Tiles:
    """A step's rows by adapter."""

    order: Tensor  # [T] rows, those of one adapter side by side
    adapters: Tensor  # [T] of each in that order; negative: none
    firsts: Tensor  # [tiles] where in that order each begins; T: it has nothing
    rows: int  # of a tile, at most


@triton.jit
def shrink_kernel(
    x, down, order, adapters, firsts, low, count,
    K: tl.constexpr, NUMBER: tl.constexpr, RANK: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr,
    STEP: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """`low` [SPLITS, T, NUMBER * PADDED], rows in their order: of one tile, weight and part of the columns."""
    first = tl.load(firsts + tl.program_id(0)).to(tl.int32)
    if first >= count:
        return
    part, split = tl.program_id(1), tl.program_id(2)
    adapter = tl.load(adapters + first).to(tl.int64)
    each = first + tl.arange(0, ROWS)
    mine = tl.load(adapters + each, mask=each < count, other=-1) == adapter
    row = tl.load(order + each, mask=mine, other=0)
    rank, column = tl.arange(0, PADDED), tl.arange(0, STEP)
    matrix = down + ((adapter * NUMBER + part) * RANK + rank)[:, None] * K + column[None, :]
    source = x + row[None, :] * K + column[:, None]
    share: tl.constexpr = (K // STEP + (1 if K % STEP else 0) + SPLITS - 1) // SPLITS * STEP
    total = tl.zeros([PADDED, ROWS], tl.float32)
    for start in range(split * share, tl.minimum((split + 1) * share, K), STEP):
        inside = column < K - start
        words = tl.load(matrix + start, mask=(rank < RANK)[:, None] & inside[None, :], other=0.0)
        columns = tl.load(source + start, mask=mine[None, :] & inside[:, None], other=0.0)
        total = tl.dot(words, columns, total, input_precision="ieee")
    line = (split * count + each).to(tl.int64) * (NUMBER * PADDED) + part * PADDED
    tl.store(low + line[None, :] + rank[:, None], total, mask=mine[None, :])


@triton.jit
def expand_kernel(
    y, up, order, adapters, firsts, low, cuts, count,
    N: tl.constexpr, NUMBER: tl.constexpr, RANK: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """`y` [T, N] grows: of one tile, outputs of one weight."""
    first = tl.load(firsts + tl.program_id(0)).to(tl.int32)
    if first >= count:
        return
    cut = cuts + tl.program_id(1) * 3
    begin, end, part = tl.load(cut), tl.load(cut + 1), tl.load(cut + 2)
    adapter = tl.load(adapters + first).to(tl.int64)
    each = first + tl.arange(0, ROWS)
    mine = tl.load(adapters + each, mask=each < count, other=-1) == adapter
    row = tl.load(order + each, mask=mine, other=0)
    rank, output = tl.arange(0, PADDED), begin + tl.arange(0, OUTPUTS)
    inside = (output < end)[:, None]
    matrix = up + (adapter * N + output)[:, None] * RANK + rank[None, :]
    wide = tl.load(matrix, mask=inside & (rank < RANK)[None, :], other=0.0)
    total = tl.zeros([PADDED, ROWS], tl.float32)
    for split in tl.static_range(SPLITS):
        line = (split * count + each).to(tl.int64) * (NUMBER * PADDED) + part * PADDED
        total += tl.load(low + line[None, :] + rank[:, None], mask=mine[None, :], other=0.0)
    added = tl.dot(wide, total.to(wide.dtype), input_precision="ieee")
    place = y + row[None, :] * N + output[:, None]
    before = tl.load(place, mask=inside & mine[None, :], other=0.0).to(tl.float32)
    tl.store(place, (before + added).to(y.dtype.element_ty), mask=inside & mine[None, :])


def plan_adapters(context: KernelContext, step: Step, attributes: Any) -> Callable[[int], Tiles]:
    """Of a value with so many rows: with all of the step's, or with the wanted ones."""
    assert step.adapters is not None
    assert context.adapters is not None
    every, amount = step.adapters, context.adapters.count
    return cache(lambda count: tiled(every if count == len(every) else every.index_select(0, step.selected), amount))


def tiled(of_rows: Tensor, amount: int) -> Tiles:
    """Nothing in it waits for the device, or depends on which of so many adapters the rows have."""
    count = len(of_rows)
    rows = FEW if count <= FEW_ROWS else MANY
    most = min(count, count // rows + amount)
    adapters, order = torch.sort(of_rows, stable=True)
    place = torch.arange(count, device=order.device)
    begins = torch.ones_like(place, dtype=torch.bool)
    torch.ne(adapters[1:], adapters[:-1], out=begins[1:])
    within = place - torch.where(begins, place, 0).cummax(0).values
    tiles = (within % rows == 0) & (adapters >= 0)
    number = torch.where(tiles, tiles.cumsum(0) - 1, most)
    firsts = torch.full((most + 1,), count, device=order.device).scatter_(0, number, place)
    return Tiles(order, adapters, firsts[:most], rows)


def bind_adapt(op: Op, context: KernelContext) -> Kernel:
    """x, y -> y, which grows in place."""
    tables = tables_of(context)
    (down, up), rank = tables.of(op.weights), tables.rank
    number, padded = len(op.weights), max(LEAST, triton.next_power_of_2(rank))
    columns, outputs = down.shape[2], up.shape[1]
    splits = max(1, min(MOST_SPLITS, columns // SHARE))
    cuts = _cuts(tables.rows(op.weights)).to(context.device)

    def kernel(planned: Callable[[int], Tiles], x: Tensor, y: Tensor) -> Tensor:
        x, y, count = x.contiguous(), y.contiguous(), len(x)
        tiles = planned(count)
        low = torch.empty((splits, count, number * padded), dtype=torch.float32, device=x.device)
        shared, grid = (tiles.order, tiles.adapters, tiles.firsts, low), len(tiles.firsts)
        sizes = number, rank, padded, tiles.rows
        shrink_kernel[(grid, number, splits)](x, down, *shared, count, columns, *sizes, COLUMNS, splits)
        expand_kernel[(grid, len(cuts))](y, up, *shared, cuts, count, outputs, *sizes, OUTPUTS, splits)
        return y

    return kernel


def _cuts(rows: list[int]) -> Tensor:
    """[programs, 3] of weights with so many rows side by side: first output and the one behind the last, and whose."""
    cuts, first = list[tuple[int, int, int]](), 0
    for part, each in enumerate(rows):
        cuts += [(begin, first + each, part) for begin in range(first, first + each, OUTPUTS)]
        first += each
    return torch.tensor(cuts, dtype=torch.int32)
