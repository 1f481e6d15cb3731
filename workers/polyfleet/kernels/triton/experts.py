# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
"""Mixtures of experts without asking the host: each expert's rows are listed on the device, where programs find theirs.

A row is one program's pair with each of its experts. How many programs there are follows from sizes alone, so that a
graph can hold them; those behind the last pair end at once, and rows without a place belong to no expert. Pairs of one
expert are in any order, but each is computed by itself, and a row's are summed up in the order of experts.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from polyfleet.graph.ops import Experts, Op, of
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.dispatch import Kernel
from polyfleet.kernels.step import Step
from polyfleet.kernels.triton.tuning import Cut, tuning

COLUMNS = 1024  # of a program that sums up
LEAST = 16  # columns of a matrix product
NARROW = 2  # bytes of a number that cuts are for: of wider ones there are fewer at once


@triton.jit
def list_kernel(
    shares, places, counts, lists, numbers, amounts, rows,
    EXPERTS: tl.constexpr, PADDED: tl.constexpr, TOP_K: tl.constexpr, PLACED: tl.constexpr,
):  # fmt: skip
    """One row's pairs: in `lists` [E, rows] of their experts, `counts` [E] long; `numbers` [rows] of them with
    `amounts` [rows, TOP_K], their shares."""
    row = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, PADDED)
    inside = expert < EXPERTS
    if PLACED:
        inside = inside & (tl.load(places + row).to(tl.int64) >= 0)
    share = tl.load(shares + row * EXPERTS + expert, mask=inside, other=0.0)
    taken = share != 0
    number = tl.cumsum(taken.to(tl.int32), 0) - 1
    taken = taken & (number < TOP_K)
    before = tl.atomic_add(counts + expert, 1, mask=taken)
    pair = row * TOP_K + number
    tl.store(lists + expert.to(tl.int64) * rows + before, pair.to(tl.int32), mask=taken)
    tl.store(amounts + pair, share, mask=taken)
    tl.store(numbers + row, tl.sum(taken.to(tl.int32), 0))


@triton.jit
def tile_of(counts, tile, EXPERTS: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr):
    """The expert of a tile (not one of EXPERTS: none), its first pair in that one's list, and how many are there."""
    expert = tl.arange(0, PADDED)
    count = tl.load(counts + expert, mask=expert < EXPERTS, other=0)
    tiles = (count + ROWS - 1) // ROWS
    mine = tl.sum((tl.cumsum(tiles, 0) <= tile).to(tl.int32), 0)
    first = (tile - tl.sum(tl.where(expert < mine, tiles, 0), 0)) * ROWS
    return mine, first, tl.sum(tl.where(expert == mine, count, 0), 0)


@triton.jit
def experts_kernel(
    x, matrices, others, biases, other_biases, counts, lists, amounts, out, rows, limit,
    K: tl.constexpr, N: tl.constexpr, EXPERTS: tl.constexpr, PADDED: tl.constexpr, PAIRS: tl.constexpr,
    BLOCK: tl.constexpr, STEP: tl.constexpr, ROWS: tl.constexpr, GATED: tl.constexpr, SQUARED: tl.constexpr,
    BIASED: tl.constexpr, LIMITED: tl.constexpr, WEIGHED: tl.constexpr,
):  # fmt: skip
    """`out` [pairs, N] of x [pairs / PAIRS, K] and each pair's own of `matrices` [E, N, K]: of one tile, BLOCK columns.

    GATED: the products gate those with `others`. SQUARED: what is over 0 is squared, all else 0. WEIGHED: products
    count times `amounts`, the pairs' shares.
    """
    expert, first, count = tile_of(counts, tl.program_id(0), EXPERTS, PADDED, ROWS)
    if expert >= EXPERTS:
        return
    each = first + tl.arange(0, ROWS)
    mine = each < count
    pair = tl.load(lists + expert.to(tl.int64) * rows + each, mask=mine, other=0).to(tl.int64)
    output = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = output < N
    column = tl.arange(0, STEP)
    line = expert.to(tl.int64) * N + tl.where(inside, output, 0)
    matrix = line[:, None] * K + column[None, :]
    source = x + (pair // PAIRS)[None, :] * K + column[:, None]
    total, other = tl.zeros([BLOCK, ROWS], tl.float32), tl.zeros([BLOCK, ROWS], tl.float32)
    for start in range(0, K, STEP):
        if K % STEP:
            left = column < K - start
            columns = tl.load(source + start, mask=mine[None, :] & left[:, None], other=0.0)
            words = tl.load(matrices + matrix + start, mask=left[None, :], other=0.0)
        else:
            columns = tl.load(source + start, mask=mine[None, :], other=0.0)
            words = tl.load(matrices + matrix + start)
        total = tl.dot(words, columns, total, input_precision="ieee")
        if GATED:
            if K % STEP:
                words = tl.load(others + matrix + start, mask=left[None, :], other=0.0)
            else:
                words = tl.load(others + matrix + start)
            other = tl.dot(words, columns, other, input_precision="ieee")
    if BIASED:
        total += tl.load(biases + line).to(tl.float32)[:, None]
    dtype = out.dtype.element_ty
    result = total.to(dtype)
    if WEIGHED:
        amount = tl.load(amounts + pair, mask=mine, other=0.0)[None, :]
        result = (result.to(tl.float32) * amount).to(dtype)
    if GATED:  # of numbers in the computing dtype, as its definition says
        if BIASED:
            other += tl.load(other_biases + line).to(tl.float32)[:, None]
        gate, up = result.to(tl.float32), other.to(dtype).to(tl.float32)
        if WEIGHED:
            up = (up * amount).to(dtype).to(tl.float32)
        if LIMITED:
            gate = tl.minimum(gate, limit)
            up = tl.minimum(tl.maximum(up, -limit), limit)
            slope = (1.0 / (1.0 + tl.exp(-1.702 * gate))).to(dtype).to(tl.float32)
            result = ((gate * slope).to(dtype).to(tl.float32) * (up + 1.0).to(dtype).to(tl.float32)).to(dtype)
        else:
            result = ((gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32) * up).to(dtype)
    if SQUARED:
        kept = tl.where(result < 0, 0.0, result.to(tl.float32))
        result = (kept * kept).to(dtype)
    tl.store(out + pair[None, :] * N + output[:, None], result, mask=mine[None, :] & inside[:, None])


@triton.jit
def sum_kernel(
    parts, numbers, amounts, out,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, TOP_K: tl.constexpr, WEIGHED: tl.constexpr,
):  # fmt: skip
    """One row of COLUMNS of `out`: its pairs' parts, WEIGHED by their shares."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < WIDTH
    number = tl.load(numbers + row)
    total = tl.zeros([COLUMNS], tl.float32)
    for each in tl.static_range(TOP_K):
        there = inside & (each < number)
        part = tl.load(parts + (row * TOP_K + each) * WIDTH + column, mask=there, other=0.0).to(tl.float32)
        if WEIGHED:
            part *= tl.load(amounts + row * TOP_K + each, mask=each < number, other=0.0)
        total += part
    tl.store(out + row * WIDTH + column, total.to(out.dtype.element_ty), mask=inside)


@dataclass(frozen=True, slots=True)
class Mixture:
    """Stacks [E, N, K] of gates (or none), of what they gate and of what leads back, and biases [E, N], if any."""

    attributes: Experts
    stacks: tuple[Tensor, ...]
    biases: tuple[Tensor | None, ...]
    cuts: tuple[Cut, ...]

    @property
    def padded(self) -> int:
        """Experts, as far as programs count them."""
        return max(2, int(triton.next_power_of_2(self.attributes.count)))


def bind_experts(op: Op, context: KernelContext) -> Kernel:
    """x, shares -> y."""
    attributes = of(op, Experts)
    columns = [context.weights[name].columns for name in op.weights]
    shapes = [(attributes.count, -1, each) for each in columns]
    stacks = tuple(context.dense(name).view(shape) for name, shape in zip(op.weights, shapes, strict=True))
    biases = tuple(context.vector(name) for name in op.biases) or (None,) * len(stacks)
    mixture = Mixture(attributes, stacks, biases, tuning(context.device).experts)
    return lambda step, x, shares: mixed(mixture, step, x.contiguous(), shares.contiguous())


def mixed(mixture: Mixture, step: Step, x: Tensor, shares: Tensor) -> Tensor:
    """y [rows, H] of x [rows, H] and shares [rows, E]."""
    attributes, (*enter, down), rows = mixture.attributes, mixture.stacks, len(x)
    experts, top_k, device = attributes.count, attributes.top_k, x.device
    counts = torch.zeros(experts, dtype=torch.int32, device=device)
    lists = torch.empty((experts, rows), dtype=torch.int32, device=device)
    numbers = torch.empty(rows, dtype=torch.int32, device=device)
    amounts = torch.empty((rows, top_k), dtype=torch.float32, device=device)
    inner = torch.empty((rows * top_k, down.shape[2]), dtype=x.dtype, device=device)
    parts = torch.empty((rows * top_k, down.shape[1]), dtype=x.dtype, device=device)
    out = torch.empty_like(x)
    placed = len(step.places) == rows  # else some rows alone are wanted, none of which is padding
    sizes = experts, mixture.padded
    list_kernel[(rows,)](
        *(shares, step.places, counts, lists, numbers, amounts, rows, *sizes, top_k, placed), num_warps=1
    )
    listed = counts, lists, amounts
    _products(mixture, listed, x, tuple(enter), mixture.biases[:-1], inner)
    _products(mixture, listed, inner, (down,), mixture.biases[-1:], parts)
    sum_kernel[(rows, triton.cdiv(down.shape[1], COLUMNS))](
        *(parts, numbers, amounts, out, down.shape[1], COLUMNS, top_k, not attributes.early), num_warps=4
    )
    return out


def _products(
    mixture: Mixture,
    listed: tuple[Tensor, Tensor, Tensor],
    x: Tensor,
    stacks: tuple[Tensor, ...],
    biases: tuple[Tensor | None, ...],
    out: Tensor,
) -> None:
    """`out` of each pair: gated where there are two stacks, squared where one enters."""
    attributes, gated, pairs = mixture.attributes, len(stacks) == 2, len(out)
    entering = stacks[-1] is not mixture.stacks[-1]
    experts, outputs, columns = stacks[0].shape
    cut = next((each for each in mixture.cuts if each.rows * experts >= 2 * pairs), mixture.cuts[-1])
    block = cut.block // 2 if gated else cut.block
    tiles = min(pairs, pairs // cut.rows + experts)
    step = min(cut.step * NARROW // out.element_size(), triton.next_power_of_2(columns))
    while columns % step and step > LEAST:
        step //= 2
    experts_kernel[(tiles, triton.cdiv(outputs, block))](
        *(x, stacks[0], stacks[-1], biases[0], biases[-1], *listed, out, listed[1].shape[1], attributes.limit),
        *(columns, outputs, experts, mixture.padded, attributes.top_k if entering else 1, block, step, cut.rows),
        *(gated, entering and not gated, biases[0] is not None, attributes.limit > 0, entering and attributes.early),
        num_warps=cut.warps,
        num_stages=cut.stages,
    )
