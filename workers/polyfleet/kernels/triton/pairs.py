# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
"""Rows as pairs of bytes, with which the matrix unit meets weights of 8 and of 4 bits as they are.

A number is unit * (high + low / LOWER), both e4m3: together they are as exact as bfloat16, so that only weights are
rounded. Weights of 8 bits are e4m3 themselves. A code of 4 bits, alone in a byte, is such a number too, a 512th of what
it counts, for e4m3's smallest ones lie equally far apart. It counts from 0, so sums of rows make up for minima.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polyfleet.kernels.triton.chaining import gdc_launch_dependents, gdc_wait
from polyfleet.kernels.triton.codes import NIBBLES

LOWER = tl.constexpr(16.0)  # what high leaves is at most a 16th of it
LARGEST = tl.constexpr(448.0)  # of e4m3
LONG = 4096  # columns from which on several programs make a row
HALVES = tl.constexpr("{ .reg .b32 t; and.b32 $0, $2, 0x0F0F0F0F; shr.b32 t, $2, 4; and.b32 $1, t, 0x0F0F0F0F; }")
OF_CODES, OF_BYTES = tl.constexpr(512.0), tl.constexpr(2.0**-120)  # what their scales are still to be multiplied by


@triton.jit
def rounded(wide):
    """To as many bits as e4m3 has, in float32: what is made of it is then exact, and can be counted on.

    Triton 3.6 reads its own e4m3 numbers back wrongly where a thread has several.
    """
    bits = wide.to(tl.int32, bitcast=True)
    return ((bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000).to(tl.float32, bitcast=True)


@triton.jit
def pair_kernel(
    x, out, units, sums, rows,
    K: tl.constexpr, SPAN: tl.constexpr, PADDED: tl.constexpr, PIECES: tl.constexpr, WORDS: tl.constexpr,
    SUMS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """One of PIECES of a row of x [rows, K] to words of 4 bytes `out` [rows, 2, K / 4], columns as in packed words.

    SUMS: also `sums` [K / (4 * SPAN), rows] of what is held of so many columns, in units.
    """
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    MINE: tl.constexpr = K // (4 * PIECES)
    word = tl.arange(0, WORDS)
    there = word < MINE
    word += piece * MINE
    whole = tl.arange(0, PADDED)
    if CHAINED:
        gdc_launch_dependents()
        gdc_wait()
    largest = tl.max(tl.abs(tl.load(x + row * K + whole, mask=whole < K, other=0.0).to(tl.float32)), 0)
    unit = tl.maximum(largest, 1e-30) / LARGEST
    source = x + row * K + word // SPAN * (4 * SPAN) + word % SPAN
    highs, lows = tl.zeros([WORDS], tl.int32), tl.zeros([WORDS], tl.int32)
    held = tl.zeros([WORDS], tl.float32)
    for place in tl.static_range(4):
        wide = tl.load(source + place * SPAN, mask=there, other=0.0).to(tl.float32) * (1.0 / unit)
        high = rounded(wide)
        low = rounded((wide - high) * LOWER)
        held += high + low / LOWER
        highs |= high.to(tl.float8e4nv).to(tl.uint8, bitcast=True).to(tl.int32) << (8 * place)
        lows |= low.to(tl.float8e4nv).to(tl.uint8, bitcast=True).to(tl.int32) << (8 * place)
    tl.store(out + row * (K // 2) + word, highs, mask=there)
    tl.store(out + row * (K // 2) + K // 4 + word, lows, mask=there)
    tl.store(units + row, unit)
    if SUMS:
        part = tl.arange(0, WORDS // SPAN)
        held = tl.sum(tl.reshape(held, [WORDS // SPAN, SPAN]), 1)
        tl.store(sums + (piece * (MINE // SPAN) + part) * rows + row, held, mask=part < MINE // SPAN)


def pairs(x: Tensor, span: int, *, sums: bool, chained: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Of x [rows, K] pairs [rows, 2, K] in e4m3, columns as in words of `span`, units [rows] and sums, as told."""
    rows, columns = x.shape
    out = torch.empty((rows, 2, columns // 4), dtype=torch.int32, device=x.device)
    units = torch.empty(rows, dtype=torch.float32, device=x.device)
    made = torch.empty((columns // (4 * span), rows), dtype=torch.float32, device=x.device) if sums else None
    pieces = 1 if columns < LONG or columns % (16 * span) else 4
    padded, words = triton.next_power_of_2(columns), triton.next_power_of_2(columns // (4 * pieces))
    options = {"launch_pdl": True} if chained else {}
    pair_kernel[(rows, pieces)](
        *(x, out, units, made, rows, columns, span, padded, pieces, words, sums, chained),
        num_warps=max(4, min(16, padded // 512)),
        **options,
    )
    return out.view(torch.float8_e4m3fn), units, made


@triton.jit
def halves_of(codes, ASSEMBLY: tl.constexpr):
    """Of bytes the codes in their lower halves and in their upper ones, each as e4m3: a 512th."""
    if ASSEMBLY:
        kinds: tl.constexpr = (tl.uint8, tl.uint8)
        low, high = tl.inline_asm_elementwise(HALVES, "=r,=r,r", [codes], dtype=kinds, is_pure=True, pack=4)
    else:
        low, high = codes & 15, codes >> 4
    return low.to(tl.float8e4nv, bitcast=True), high.to(tl.float8e4nv, bitcast=True)


@triton.jit
def joined(both, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """Of products with highs and lows, which lie side by side, those with rows."""
    high, low = tl.split(tl.reshape(both, [BLOCK, ROWS, 2]))
    return high + low * (1.0 / LOWER)


@triton.jit
def paired_products(
    x, codes, groups, sums, output, rows, begin, end,
    N: tl.constexpr, K: tl.constexpr, KIND: tl.constexpr, GROUP: tl.constexpr, MINIMA: tl.constexpr,
    STEP: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, ASSEMBLY: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """[BLOCK, ROWS] of pairs x [rows, 2, K] and bytes of weights, STEP of them at once: begin ... end - 1.

    Groups' scales are applied, but for those of whole rows. STAGES: of all loads, scales and sums too.
    """
    EACH: tl.constexpr = 2 if KIND == NIBBLES else 1  # codes of a byte
    column, half, row = tl.arange(0, STEP), tl.arange(0, 2 * ROWS), tl.arange(0, ROWS)
    meant = (half < 2 * rows)[None, :]
    matrix = codes + output.to(tl.int64)[:, None] * (K // EACH) + column[None, :]
    source = x + half[None, :] * K + column[:, None]
    if GROUP == K and KIND != NIBBLES:
        both = tl.zeros([BLOCK, 2 * ROWS], tl.float32)
        for step in range(begin, end):
            weights = tl.load(matrix + step * STEP)
            both = tl.dot(weights, tl.load(source + step * STEP, mask=meant, other=0.0), both)
        return joined(both, BLOCK, ROWS)
    total = tl.zeros([BLOCK, ROWS], tl.float32)
    for step in tl.range(begin, end, num_stages=STAGES):
        weights = tl.load(matrix + step * STEP)
        parts = halves_of(weights, ASSEMBLY) if KIND == NIBBLES else (weights,)
        for part in tl.static_range(EACH):
            place = step * EACH + part
            group = tl.load(groups + place * STEP // GROUP * N + output)
            scale = (group << 16).to(tl.float32, bitcast=True)
            both = tl.dot(parts[part], tl.load(source + place * STEP, mask=meant, other=0.0))
            total += (scale * (OF_CODES if KIND == NIBBLES else OF_BYTES))[:, None] * joined(both, BLOCK, ROWS)
            if KIND == NIBBLES:
                amount = tl.load(sums + place * rows + row, mask=row < rows, other=0.0)
                minimum = (group & -65536).to(tl.float32, bitcast=True) if MINIMA else -8.0 * scale
                total += minimum[:, None] * amount[None, :]
    return total
