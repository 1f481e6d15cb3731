# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
"""y = x Wᵀ for few rows of x, with what stands before and behind it in a layer: as fast as weights can be read.

A program has BLOCK outputs and all rows, and one of SPLITS parts of the columns; the part that is done last sums them
in their order. Weights are the matrix unit's tall operand, rows its narrow one.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from polyfleet.kernels.triton import hopper_linear
from polyfleet.kernels.triton.chaining import gdc_launch_dependents, gdc_wait
from polyfleet.kernels.triton.codes import BYTES, DENSE, NIBBLES, numbers_of, pack_of, unpack_kernel
from polyfleet.kernels.triton.matrices import Matrix, Met, kind_of, met_by
from polyfleet.kernels.triton.pairs import OF_BYTES, paired_products
from polyfleet.kernels.triton.shrink import NOT_GROWN, Grown, grown_of, part_of, shrink_rows, upper_of
from polyfleet.kernels.triton.tuning import Cut, Tuning

SILU_MUL, ADD = tl.constexpr(1), tl.constexpr(2)  # what becomes of products; 0: nothing
SMALL = 2**22  # weights: a product so short that it is its launch that counts
UNPACKED = 32  # rows of a program that unpacks


@triton.jit
def linear_kernel(
    codes, x, units, totals, squares, groups, bias, residual, gain, out, gained, sums, parts, arrived, rows, eps,
    N: tl.constexpr, K: tl.constexpr, SQUARES: tl.constexpr, GROUP: tl.constexpr, MINIMA: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, SPLITS: tl.constexpr, NORM: tl.constexpr, BIAS: tl.constexpr,
    BEHIND: tl.constexpr, plain, low, down, up, adapters, shrinking, RANK: tl.constexpr, SECOND: tl.constexpr,
    THIRD: tl.constexpr, RANKS: tl.constexpr, SHRUNK: tl.constexpr, COLUMNS: tl.constexpr, KIND: tl.constexpr,
    SPAN: tl.constexpr, STEP: tl.constexpr, ASSEMBLY: tl.constexpr, CHAINED: tl.constexpr, LINES: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """`out` [rows, N or N / 2] of x [rows, K] and weights [N, K], STEP words of a chunk at once.

    NORM: x is gained, not normed yet; `squares` [rows, SQUARES] are parts of the sum of its squares before.
    SILU_MUL: silu of the first N / 2 outputs times the others. ADD: out = y + residual, `gained` = out * gain, and
    `sums` [rows, N / BLOCK] the parts of out's squares. CHAINED: begins while the kernel before it
    ends; 2: lets the one behind it begin at once, 1: when its products are made. LINES: so many lines of 64 columns of
    each row of weights are fetched before it waits; 0: none. For a single row, which is for dense weights alone, they
    are all read before it waits, and no matrix unit is needed. BYTES, NIBBLES: x are pairs in `units` [rows] with
    `totals`, sums of theirs (see `pairs`), and `codes` bytes of weights. RANK: `up` [adapters, N, RANK] times `low`
    [rows, weights * RANK] is added, of the adapter of each row, if any; the second weight begins at the output SECOND,
    a third one at THIRD. `shrinking` programs in front of each split's others make `low` of `plain`, which is x as it
    was before it became pairs, SHRUNK lines of `down` and COLUMNS at once.
    """
    tile, split = tl.program_id(0), tl.program_id(1)
    if RANK > 0:
        tile -= shrinking
        if tile < 0:
            first, every = tl.program_id(0) * SPLITS + split, shrinking * SPLITS
            ALL: tl.constexpr = RANK * (1 + (SECOND < N) + (THIRD < N))
            shrink_rows(plain, down, adapters, low, first, every, rows, K, ALL, SHRUNK, COLUMNS, CHAINED > 0)
            return
    dtype = out.dtype.element_ty
    HALVES: tl.constexpr = 2 if BEHIND == SILU_MUL else 1
    each = tl.arange(0, BLOCK)
    output = tile * (BLOCK // HALVES) + each % (BLOCK // HALVES)
    inside = output < N // HALVES
    if (N // HALVES) % (BLOCK // HALVES):
        output = tl.where(inside, output, 0)
    output += each // (BLOCK // HALVES) * (N // HALVES)
    row = tl.arange(0, ROWS)
    present = row < rows
    column = tl.arange(0, STEP)
    PACK: tl.constexpr = pack_of(KIND)
    CHUNK: tl.constexpr = PACK * SPAN
    SCALES: tl.constexpr = CHUNK // GROUP if CHUNK > GROUP else 1
    CODES: tl.constexpr = PACK // SCALES
    STEPS: tl.constexpr = K // (PACK * STEP)
    share = STEPS // SPLITS + (1 if STEPS % SPLITS else 0)
    begin = split * share
    matrix = codes + output.to(tl.int64)[:, None] * (K // PACK) + column[None, :]
    if LINES > 0:
        line = tl.arange(0, LINES) * 64
        lines = codes + output.to(tl.int64)[:, None] * K + tl.where(line < K, line, 0)[None, :]
        fetch: tl.constexpr = "prefetch.global.L2 [$1]; mov.u32 $0, 0;"
        tl.inline_asm_elementwise(fetch, "=r,l", [lines], dtype=tl.int32, is_pure=False, pack=1)
    if ROWS == 1:
        all_columns = tl.arange(0, triton.next_power_of_2(K))
        there = all_columns < K
        whole = codes + output.to(tl.int64)[:, None] * K + all_columns[None, :]
        weights = tl.load(whole, mask=there[None, :], other=0.0)
    if RANK > 0 and LINES > 0:
        upper = upper_of(up, adapters, output, inside, rows, 0, N, RANK, RANKS, ROWS)
    if CHAINED > 0:
        gdc_wait()
    if CHAINED == 2:
        gdc_launch_dependents()
    EARLY: tl.constexpr = LINES > 0 or ROWS == 1  # of short products, whose sums else would wait for what they take
    place = row.to(tl.int64)[None, :] * N + output[:, None]
    mine = inside[:, None] & present[None, :]
    if NORM and EARLY:
        pieces = _squares(squares, row, present, SQUARES)
    if BEHIND == ADD and EARLY:
        beside, factor = tl.load(residual + place, mask=mine, other=0.0), tl.load(gain + output)
    source = x + row[None, :] * K + column[:, None]
    total = tl.zeros([BLOCK, ROWS], tl.float32)
    if ROWS == 1:
        values = tl.load(x + all_columns, mask=there, other=0.0).to(tl.float32)
        total += tl.sum(weights.to(tl.float32) * values[None, :], 1)[:, None]
    elif KIND >= BYTES:
        end = tl.minimum(begin + share, STEPS)
        given = x, codes, groups, totals, output, rows, begin, end
        total = paired_products(*given, N, K, KIND, GROUP, MINIMA, STEP, BLOCK, ROWS, ASSEMBLY, STAGES)
    else:
        for step in range(begin, tl.minimum(begin + share, STEPS)):
            words = tl.load(matrix + step * STEP)
            if KIND == DENSE:
                columns = tl.load(source + step * STEP, mask=present[None, :], other=0.0)
                total = tl.dot(words, columns, total, input_precision="ieee")
            else:
                chunk = step * STEP // SPAN * CHUNK
                for part in tl.static_range(SCALES):
                    group = tl.load(groups + (chunk // GROUP + part) * N + output)
                    numbers = numbers_of(words, group, dtype, KIND, part * CODES, CODES, MINIMA, ASSEMBLY)
                    for number in tl.static_range(CODES):
                        ahead = tl.multiple_of(chunk + (part * CODES + number) * SPAN + step * STEP % SPAN, STEP)
                        columns = tl.load(source + ahead, mask=present[None, :], other=0.0)
                        total = tl.dot(numbers[number], columns, total, input_precision="ieee")
    if CHAINED == 1:
        gdc_launch_dependents()
    if SPLITS > 1:
        cell = tl.arange(0, BLOCK)[:, None] + tl.arange(0, ROWS)[None, :] * BLOCK
        tl.store(parts + (tile * SPLITS + split) * BLOCK * ROWS + cell, total)
        tl.debug_barrier()
        if tl.atomic_add(arrived + tile, 1, sem="acq_rel") != SPLITS - 1:
            return
        total = tl.zeros([BLOCK, ROWS], tl.float32)
        for number in tl.static_range(SPLITS):
            total += tl.load(parts + (tile * SPLITS + number) * BLOCK * ROWS + cell, cache_modifier=".cg")
        tl.store(arrived + tile, 0)
    if KIND >= BYTES:
        total = total * tl.load(units + row, mask=present, other=0.0)[None, :]
    if KIND == BYTES and GROUP == K:
        total = total * ((tl.load(groups + output) << 16).to(tl.float32, bitcast=True) * OF_BYTES)[:, None]
    if NORM and not EARLY:
        pieces = _squares(squares, row, present, SQUARES)
    if BEHIND == ADD and not EARLY:
        beside, factor = tl.load(residual + place, mask=mine, other=0.0), tl.load(gain + output)
    if RANK > 0:
        least, most = tile * (BLOCK // HALVES), tl.minimum((tile + 1) * (BLOCK // HALVES), N // HALVES) - 1
        lowest, highest = part_of(least, SECOND, THIRD), part_of(most + N // HALVES * (HALVES - 1), SECOND, THIRD)
        if LINES == 0:
            upper = upper_of(up, adapters, output, inside, rows, 0, N, RANK, RANKS, ROWS)
        outputs = output, inside, lowest, highest
        total = grown_of(total, upper, up, low, adapters, *outputs, rows, N, RANK, RANKS, SECOND, THIRD, ROWS)
    if NORM:
        total = total * tl.rsqrt(tl.sum(pieces, 1) / K + eps)[None, :]
    if BIAS:
        total += tl.load(bias + output).to(tl.float32)[:, None]
    if BEHIND == SILU_MUL:
        gate, up = tl.split(tl.permute(tl.reshape(total.to(dtype), [2, BLOCK // 2, ROWS]), [1, 2, 0]))
        wide = gate.to(tl.float32)
        active = (wide / (1.0 + tl.exp(-wide))).to(dtype) * up
        first = tile * (BLOCK // 2) + tl.arange(0, BLOCK // 2)
        mine = (first < N // 2)[:, None] & present[None, :]
        tl.store(out + row.to(tl.int64)[None, :] * (N // 2) + first[:, None], active, mask=mine)
    else:
        result = total.to(dtype)
        if BEHIND == ADD:
            result += beside
            tl.store(gained + place, result * factor[:, None], mask=mine)
            wide = tl.where(mine, result.to(tl.float32), 0.0)
            tl.store(sums + row * (N // BLOCK + (1 if N % BLOCK else 0)) + tile, tl.sum(wide * wide, 0), mask=present)
        tl.store(out + place, result, mask=mine)


@triton.jit
def _squares(squares, row, present, SQUARES: tl.constexpr):
    """Parts of the sum of each row's squares [ROWS, a power of 2]."""
    piece = tl.arange(0, triton.next_power_of_2(SQUARES))
    known = present[:, None] & (piece < SQUARES)[None, :]
    return tl.load(squares + row[:, None] * SQUARES + piece[None, :], mask=known, other=0.0)


@dataclass(frozen=True, slots=True)
class Operands:
    """Beside x: all None for plain products."""

    squares: Tensor | None = None  # [rows, any] float32: x is gained only
    eps: float = 0.0
    bias: Tensor | None = None  # [N]
    residual: Tensor | None = None  # [rows, N], and
    gain: Tensor | None = None  # [N], where sums are wanted
    grown: Grown | None = None  # what adapters add to x Wᵀ


def linear(matrix: Matrix, tuned: Tuning, x: Tensor, given: Operands, *, silu: bool = False) -> tuple[Tensor, ...]:
    """y; with a residual y + residual, the same times gain, and parts of its squares [rows, any]; `silu`: of halves."""
    x, count, squares = x.contiguous(), len(x), given.squares
    small, grown = matrix.rows * matrix.columns <= SMALL, given.grown or NOT_GROWN
    stream = streamed(matrix, tuned, x) if grown.low is None else None
    span = matrix.span if stream and stream.rows == 1 else 0  # of a row that is made pairs inside
    met = met_by(matrix, tuned, x, inside=span > 0)
    alone = tuned.alone if count == 1 and small and met.kind == 0 else None
    cut = stream or alone or tuned.cut(met.kind, count, silu=silu, wide=x.element_size() > 2)
    halves, behind = (2 if silu else 1), 2 if given.residual is not None else int(silu)
    tiles = triton.cdiv(matrix.rows // halves, cut.block // halves)
    splits = 1 if alone else cut.splits(tiles, matrix.columns)
    rows = 1 if alone else max(8 if met.kind else 16, triton.next_power_of_2(count))
    rows = hopper_linear.ALONE if span else min(rows, cut.rows)
    blocks = triton.cdiv(count, rows)
    out, gained = (x.new_empty((count, matrix.rows // halves)) for _ in range(2))
    sums = torch.empty((count, tiles), dtype=torch.float32, device=x.device)
    room = blocks * tiles * splits * cut.block * rows if splits > 1 else 0
    parts = torch.empty(room, dtype=torch.float32, device=x.device)
    shared = (
        *(met.units, met.totals, squares, matrix.groups, given.bias, given.residual, given.gain, out, gained, sums),
        *(parts, matrix.arrived, count, given.eps, matrix.rows, matrix.columns),
        *(1 if squares is None else squares.shape[1], matrix.group, matrix.minima, cut.block, rows, splits),
        *(squares is not None, given.bias is not None, behind),
    )
    options = {"launch_pdl": True} if tuned.chained else {}
    if stream:
        hopper_linear.launch((blocks, tiles, splits), met.codes, met.x, shared, cut, (rows, halves, span), options)
    else:
        rest = _portable(matrix, tuned, met, cut, small=small, alone=bool(alone))
        shrinking = grown.programs(splits)
        low_rank = *grown.operands, shrinking, *grown.sizes, *grown.at_once(cut.block * rows, cut.warps)
        linear_kernel[(shrinking + tiles, splits)](
            *(met.codes, met.x, *shared, x, *low_rank, *rest),
            **{"num_warps": cut.warps, "num_stages": cut.stages, **options},
        )
    return (out, gained, sums) if behind == 2 else (out,)


def streamed(matrix: Matrix, tuned: Tuning, x: Tensor) -> Cut | None:
    """The cut of `hopper_linear`, which takes any number of rows; None where the kernel for all devices is taken."""
    kind = kind_of(matrix, tuned, x)
    fits = kind >= 3 and hopper_linear.fits(kind, matrix)
    return tuned.stream(kind, len(x), matrix.rows, matrix.columns) if fits else None


def _portable(matrix: Matrix, tuned: Tuning, met: Met, cut: Cut, *, small: bool, alone: bool) -> tuple[Any, ...]:
    """What the kernel for all devices is made for beside `shared`: KIND ... STAGES."""
    step, dense = _steps(matrix, met.kind, cut), met.kind == 0
    assembly = tuned.assembly and met.kind in (1, 2, 4) and (met.kind == NIBBLES or met.x.dtype is torch.bfloat16)
    chained = 0 if not tuned.chained else 2 if small else 1
    ahead = small and tuned.ahead and dense and not alone
    lines = triton.next_power_of_2(triton.cdiv(matrix.columns, 64)) if ahead else 0
    return met.kind, matrix.span or step, step, assembly, chained, lines, cut.stages


def unpacked(matrix: Matrix, tuned: Tuning, dtype: torch.dtype) -> Tensor:
    """A packed matrix [N, K] in a dtype."""
    out = torch.empty((matrix.rows, matrix.columns), dtype=dtype, device=matrix.codes.device)
    chunks = matrix.codes.shape[1] // matrix.span
    unpack_kernel[(triton.cdiv(matrix.rows, UNPACKED), chunks)](
        *(matrix.codes, matrix.groups, out, matrix.rows, matrix.columns, matrix.kind, matrix.group, matrix.minima),
        *(matrix.span, UNPACKED, tuned.assembly and dtype is torch.bfloat16),
    )
    return out


def _steps(matrix: Matrix, kind: int, cut: Cut) -> int:
    """Words or bytes at once: of a matrix without groups, as many as divide its columns."""
    if kind == NIBBLES or (kind == BYTES and matrix.group < matrix.columns):
        return 4 * matrix.span
    if kind in (1, 2):
        return min(matrix.span, cut.step)
    step = cut.step
    while matrix.columns % step:
        step //= 2
    return step
