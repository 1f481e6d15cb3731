# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
"""Products of pairs and bytes of weights on compute capability 9.0, in Gluon: what `linear_kernel` makes of them.

The device's own engine copies, and begins with the weights before rows are there. Codes of 4 bits go through registers
to the matrix unit, two groups at a time, while the one's scale is applied to the products of the other. See `hopper`
for what Gluon is, and where it is not.
"""

from typing import Any

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from polyfleet.kernels.triton.codes import NIBBLES
from polyfleet.kernels.triton.hopper_row import paired_row
from polyfleet.kernels.triton.pairs import HALVES, LOWER, OF_BYTES, OF_CODES
from polyfleet.kernels.triton.tuning import Cut

AVAILABLE = triton.__version__.startswith("3.6.")
LINE = 128  # bytes of a row at once
LAYOUT = gl.NVMMASharedLayout(128, 8, 3)
ALONE = 4  # rows that the matrix unit meets where there is one


def described(data: Tensor, shape: tuple[int, int, int], strides: tuple[int, int], box: tuple[int, int]) -> Any:
    """Bytes [blocks, lines, bytes], blocks and lines `strides` apart, of which `box` x LINE are copied as one."""
    return TensorDescriptor(data, list(shape), [*strides, 1], [*box, LINE], LAYOUT)


@gluon.jit
def shared_lines(values):
    """In shared memory, a line behind the other."""
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    return gl.allocate_shared_memory(values.dtype, values.shape, PLAIN, values)


@gluon.jit
def joined(both, BLOCK: gl.constexpr, ROWS: gl.constexpr):
    """Of products with highs and lows, which lie side by side, those with rows."""
    high, low = gl.split(gl.reshape(both, [BLOCK, ROWS, 2]))
    return high + low * (1.0 / LOWER)


@gluon.jit
def weighed(total, both, group, amount, MINIMA: gl.constexpr, BLOCK: gl.constexpr, ROWS: gl.constexpr):
    """`total` and a group's products, with its scale and its minimum."""
    scale = (group << 16).to(gl.float32, bitcast=True)
    minimum = (group & -65536).to(gl.float32, bitcast=True) if MINIMA else -8.0 * scale
    total += (scale * OF_CODES)[:, None] * joined(both, BLOCK, ROWS)
    return total + minimum[:, None] * amount[None, :]


@gluon.jit
def hopper_linear_kernel(
    weights, x, units, totals, squares, groups, bias, residual, gain, out, gained, sums, parts, arrived, rows, eps,
    N: gl.constexpr, K: gl.constexpr, SQUARES: gl.constexpr, GROUP: gl.constexpr, MINIMA: gl.constexpr,
    BLOCK: gl.constexpr, ROWS: gl.constexpr, SPLITS: gl.constexpr, NORM: gl.constexpr, BIAS: gl.constexpr,
    BEHIND: gl.constexpr, EACH: gl.constexpr, STAGES: gl.constexpr, LINE: gl.constexpr, CHAINED: gl.constexpr,
    SPAN: gl.constexpr,
):  # fmt: skip
    """As `linear_kernel`, of any number of rows; `weights` and `x` are `described`. EACH: codes of a byte, 1 or 2.

    A copy is one order for all that a step needs of weights, or of pairs: each waits for all warps to be there.

    SPAN: x is a single row as it is, which each program makes pairs of, in words' order; 0: pairs.
    """
    upper, tile, split = gl.program_id(0) * ROWS, gl.program_id(1), gl.program_id(2)
    meeting = gl.program_id(0) * gl.num_programs(1) + tile  # where parts of the same outputs do
    dtype: gl.constexpr = out.dtype.element_ty
    WARPS: gl.constexpr = gl.num_warps()
    PARTS: gl.constexpr = 2 if BEHIND == 1 else 1
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, 2 * ROWS, 32])
    CODES: gl.constexpr = gl.DotOperandLayout(0, MMA, 4)
    SHARED: gl.constexpr = gl.NVMMASharedLayout(128, 8, 2)
    STEPS: gl.constexpr = K // (LINE * EACH)
    SHARE: gl.constexpr = (STEPS + SPLITS - 1) // SPLITS
    BYTES: gl.constexpr = (BLOCK + (0 if SPAN > 0 else EACH * 2 * ROWS)) * LINE
    PIECES: gl.constexpr = triton.next_power_of_2(EACH * SHARE)
    begin = split * SHARE
    count = gl.minimum(SHARE, STEPS - begin)
    TILED: gl.constexpr = gl.NVMMASharedLayout(128, 8, 3)
    w_tiles = gl.allocate_shared_memory(weights.dtype, [STAGES, PARTS, BLOCK // PARTS, LINE], TILED)
    w_ring = w_tiles._reinterpret(weights.dtype, [STAGES, BLOCK, LINE], SHARED)
    if SPAN > 0:
        OF_ROW: gl.constexpr = gl.NVMMASharedLayout(64, 8, 2)  # whose first two rows lie as they are
        x_ring = gl.allocate_shared_memory(gl.float8e4nv, [PIECES, 2 * ROWS, LINE], OF_ROW)
    else:
        x_tiles = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, EACH, 2 * ROWS, LINE], TILED)
        x_ring = x_tiles._reinterpret(gl.float8e4nv, [STAGES * EACH, 2 * ROWS, LINE], SHARED)
    bars = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for each in gl.static_range(STAGES):
        mbarrier.init(bars.index(each), count=1)
    fence_async_shared()
    for each in gl.static_range(STAGES):
        bar = bars.index(each)
        mbarrier.expect(bar, BYTES, pred=each < count)
        place = [0, tile * (BLOCK // PARTS), (begin + each) * LINE]
        tma.async_copy_global_to_shared(weights, place, bar, w_tiles.index(each), pred=each < count)
    zeros = gl.zeros([BLOCK, 2 * ROWS], gl.float32, MMA)
    total = joined(zeros, BLOCK, ROWS)
    SUMS: gl.constexpr = total.type.layout
    each = gl.arange(0, BLOCK, layout=gl.SliceLayout(1, SUMS))
    output = tile * (BLOCK // PARTS) + each % (BLOCK // PARTS)
    output = gl.where(output < N // PARTS, output, 0) + each // (BLOCK // PARTS) * (N // PARTS)
    if EACH == 2:
        COUNT: gl.constexpr = triton.next_power_of_2(2 * SHARE)
        LINES: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [WARPS, 1], [1, 0])
        FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
        part = gl.minimum(begin * 2 + gl.arange(0, COUNT, layout=gl.SliceLayout(1, LINES)), 2 * STEPS - 1)
        wanted = gl.convert_layout(output, gl.SliceLayout(0, LINES))
        scales = shared_lines(gl.load(groups + (part * LINE // GROUP * N)[:, None] + wanted[None, :]))
        scales = scales._reinterpret(gl.int32, [COUNT, BLOCK], FLAT)
    if CHAINED:
        gl.inline_asm_elementwise("griddepcontrol.wait; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1)
    if SPAN > 0:
        unit, held = paired_row(x, x_ring, begin * EACH, count * EACH, SPAN, PIECES, LINE)
        gl.thread_barrier()
    else:
        for each in gl.static_range(STAGES):
            place = [(begin + each) * EACH, 2 * upper, 0]
            tma.async_copy_global_to_shared(x, place, bars.index(each), x_tiles.index(each), pred=each < count)
    if EACH == 2 and SPAN > 0:
        held = gl.convert_layout(held, gl.SliceLayout(1, LINES))
        amounts = held[:, None] + gl.zeros([COUNT, ROWS], gl.float32, LINES)
        amounts = shared_lines(amounts)._reinterpret(gl.float32, [COUNT, ROWS], FLAT)
    elif EACH == 2:
        row = upper + gl.arange(0, ROWS, layout=gl.SliceLayout(0, LINES))
        amounts = gl.load(totals + (part * rows)[:, None] + row[None, :], mask=(row < rows)[None, :], other=0.0)
        amounts = shared_lines(amounts)._reinterpret(gl.float32, [COUNT, ROWS], FLAT)
    if EACH == 1:
        both = zeros
        for number in range(count):
            slot = number % STAGES
            mbarrier.wait(bars.index(slot), (number // STAGES) & 1)
            other = number if SPAN > 0 else slot
            made = warpgroup_mma(w_ring.index(slot), x_ring.index(other).permute((1, 0)), both, is_async=True)
            both = warpgroup_mma_wait(1, deps=[made])
            before = (number + STAGES - 1) % STAGES
            fill = (number > 0) & (number - 1 + STAGES < count)
            step, bar = begin + number - 1 + STAGES, bars.index(before)
            gl.thread_barrier()
            mbarrier.expect(bar, BYTES, pred=fill)
            place = [0, tile * (BLOCK // PARTS), step * LINE]
            tma.async_copy_global_to_shared(weights, place, bar, w_tiles.index(before), pred=fill)
            if SPAN == 0:
                tma.async_copy_global_to_shared(x, [step, 2 * upper, 0], bar, x_tiles.index(before), pred=fill)
        both = warpgroup_mma_wait(0, deps=[both])
        total = joined(both, BLOCK, ROWS)
        scale = (gl.load(groups + output) << 16).to(gl.float32, bitcast=True) * OF_BYTES
        total = total * scale[:, None]
    else:
        OF_OUTPUTS: gl.constexpr = gl.SliceLayout(1, SUMS)
        OF_ROWS: gl.constexpr = gl.SliceLayout(0, SUMS)
        for number in range(count):
            slot = number % STAGES
            mbarrier.wait(bars.index(slot), (number // STAGES) & 1)
            packed = w_ring.index(slot).load(CODES)
            low, high = gl.inline_asm_elementwise(
                HALVES, "=r,=r,r", [packed], dtype=(gl.uint8, gl.uint8), is_pure=True, pack=4
            )
            low, high = low.to(gl.float8e4nv, bitcast=True), high.to(gl.float8e4nv, bitcast=True)
            tile_of = 2 * (number if SPAN > 0 else slot)
            made = warpgroup_mma(low, x_ring.index(tile_of).permute((1, 0)), zeros, use_acc=False, is_async=True)
            lines = x_ring.index(tile_of + 1).permute((1, 0))
            other = warpgroup_mma(high, lines, zeros, use_acc=False, is_async=True)
            group, amount = scales.index(2 * number).load(OF_OUTPUTS), amounts.index(2 * number).load(OF_ROWS)
            both = warpgroup_mma_wait(1, deps=[made])
            total = weighed(total, both, group, amount, MINIMA, BLOCK, ROWS)
            group, amount = scales.index(2 * number + 1).load(OF_OUTPUTS), amounts.index(2 * number + 1).load(OF_ROWS)
            both = warpgroup_mma_wait(0, deps=[other])
            gl.thread_barrier()
            fill = number + STAGES < count
            step, bar = begin + number + STAGES, bars.index(slot)
            mbarrier.expect(bar, BYTES, pred=fill)
            place = [0, tile * (BLOCK // PARTS), step * LINE]
            tma.async_copy_global_to_shared(weights, place, bar, w_tiles.index(slot), pred=fill)
            if SPAN == 0:
                tma.async_copy_global_to_shared(x, [2 * step, 2 * upper, 0], bar, x_tiles.index(slot), pred=fill)
            total = weighed(total, both, group, amount, MINIMA, BLOCK, ROWS)
    if SPAN > 0:
        total = total * unit
    if CHAINED:
        gl.inline_asm_elementwise(
            "griddepcontrol.launch_dependents; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
        )
    OUT: gl.constexpr = gl.BlockedLayout([1, 1], [32, 1], [BLOCK // 32, WARPS * 32 // BLOCK], [0, 1])
    COLUMN: gl.constexpr = gl.SliceLayout(1, OUT)
    ROW: gl.constexpr = gl.SliceLayout(0, OUT)
    total = gl.convert_layout(total, OUT)
    each, line = gl.arange(0, BLOCK, layout=COLUMN), gl.arange(0, ROWS, layout=ROW)
    row = upper + line
    present = row < rows
    if SPLITS > 1:
        cell = each[:, None] + line[None, :] * BLOCK
        gl.store(parts + (meeting * SPLITS + split) * BLOCK * ROWS + cell, total)
        gl.thread_barrier()
        if gl.atomic_add(arrived + meeting, 1, sem="acq_rel") != SPLITS - 1:
            return
        total = gl.zeros([BLOCK, ROWS], gl.float32, OUT)
        for number in gl.static_range(SPLITS):
            total += gl.load(parts + (meeting * SPLITS + number) * BLOCK * ROWS + cell, cache_modifier=".cg")
        gl.store(arrived + meeting, 0)
    if SPAN == 0:
        total = total * gl.load(units + row, mask=present, other=0.0)[None, :]
    if NORM:
        PARTED: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [WARPS, 1], [1, 0])
        line = upper + gl.arange(0, ROWS, layout=gl.SliceLayout(1, PARTED))
        piece = gl.arange(0, triton.next_power_of_2(SQUARES), layout=gl.SliceLayout(0, PARTED))
        known = (line < rows)[:, None] & (piece < SQUARES)[None, :]
        amount = gl.sum(gl.load(squares + line[:, None] * SQUARES + piece[None, :], mask=known, other=0.0), 1)
        total = total * gl.convert_layout(gl.rsqrt(amount / K + eps), ROW)[None, :]
    output = tile * (BLOCK // PARTS) + each % (BLOCK // PARTS)
    inside = output < N // PARTS
    output = gl.where(inside, output, 0) + each // (BLOCK // PARTS) * (N // PARTS)
    if BIAS:
        total += gl.load(bias + output).to(gl.float32)[:, None]
    result = total.to(dtype)
    if BEHIND == 1:
        SIDES: gl.constexpr = gl.BlockedLayout([1, 1, 2], [32, 1, 1], [BLOCK // 64, WARPS * 64 // BLOCK, 1], [2, 0, 1])
        sides = gl.permute(gl.reshape(result, [2, BLOCK // 2, ROWS]), (1, 2, 0))
        gate, up = gl.split(gl.convert_layout(sides, SIDES))
        ACTIVE: gl.constexpr = gate.type.layout
        wide = gate.to(gl.float32)
        active = (wide / (1.0 + gl.exp(-wide))).to(dtype) * up
        first = tile * (BLOCK // 2) + gl.arange(0, BLOCK // 2, layout=gl.SliceLayout(1, ACTIVE))
        line = upper + gl.arange(0, ROWS, layout=gl.SliceLayout(0, ACTIVE))
        mine = (first < N // 2)[:, None] & (line < rows)[None, :]
        gl.store(out + line.to(gl.int64)[None, :] * (N // 2) + first[:, None], active, mask=mine)
    else:
        place = row.to(gl.int64)[None, :] * N + output[:, None]
        mine = inside[:, None] & present[None, :]
        if BEHIND == 2:
            result += gl.load(residual + place, mask=mine, other=0.0)
            factor = gl.load(gain + output)
            gl.store(gained + place, result * factor[:, None], mask=mine)
            wide = gl.where(mine, result.to(gl.float32), 0.0)
            gl.store(sums + row * ((N + BLOCK - 1) // BLOCK) + tile, gl.sum(wide * wide, 0), mask=present)
        gl.store(out + place, result, mask=mine)


def fits(kind: int, matrix: Any) -> bool:
    """Whether lines of bytes are of one group, or of two that lie in their halves."""
    each = 2 if kind == NIBBLES else 1  # codes of a byte
    whole = 4 * matrix.span == LINE if each == 2 else matrix.group == matrix.columns
    return AVAILABLE and bool(whole) and matrix.columns % (each * LINE) == 0


def launch(
    grid: tuple[int, ...], codes: Tensor, x: Tensor, shared: tuple[Any, ...], cut: Cut, shape: tuple[int, int, int],
    options: dict[str, bool],
) -> None:  # fmt: skip
    """Over bytes of weights and pairs [rows, 2, K], or a row.

    `shape`: rows of a program, parts that its outputs lie in, and SPAN.
    """
    rows, parts, span = shape
    each = 2 if codes.dtype is torch.uint8 else 1
    lines, width = len(codes) // parts, codes.shape[1]
    weights = described(codes, (parts, lines, width), (lines * width, width), (parts, cut.block // parts))
    if span:
        operand = x
    else:
        count, columns = 2 * len(x), x.shape[2]
        operand = described(x, (columns // LINE, count, LINE), (LINE, columns), (each, 2 * rows))
    hopper_linear_kernel[grid](
        *(weights, operand, *shared, each, cut.stages, LINE, bool(options), span), num_warps=cut.warps, **options
    )
