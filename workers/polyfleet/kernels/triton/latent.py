# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
"""Latent attention over what is cached as it is: all heads of a row, and rows side by side, share one key a position.

A program has QUERIES neighbours of a sequence's rows x heads; of sequences with one row, and one of SPLITS parts of the
context, which the part that is done last puts together in their order, as in `decode`.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from polyfleet.graph.ops import Attention, Op, of
from polyfleet.kernels.cached import pointed
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.dispatch import Kernel
from polyfleet.kernels.step import Step
from polyfleet.kernels.triton.decode import LOG2E
from polyfleet.kernels.triton.prefill import cut_prompts, single_lengths
from polyfleet.kernels.triton.tuning import Launch, tuning

MOST_SPLITS = 16
NARROW = 2  # bytes of a number that launches are tuned for; for wider ones there is
WIDE = Launch(16, 4, 1, 16)
LIKELY = 8  # as of `attention`
LEAST = 16  # rows and columns of a matrix product


@dataclass(frozen=True, slots=True)
class LatentPlan:
    """What layers share: how sequences are cut, and where parts meet."""

    step: Step
    launch: Launch
    queries: int  # of a program
    single: int  # sequences with one row,
    lengths: Tensor  # of these, and
    splits: int  # parts of their context
    tiles: Tensor | None  # [programs, 2] int32 of the others: a sequence, and its first query counted from its own
    parts: Tensor  # [pairs * splits * queries, C] float32
    peaks: Tensor  # [pairs * splits * queries, 2] float32: each part's maximum and sum
    arrived: Tensor  # [pairs] int32, all 0 between launches


@triton.jit
def latent_kernel(
    q, rest, cache, tables, lengths, row_starts, tiles, out, parts, peaks, arrived, table_stride, scale,
    HEADS: tl.constexpr, LATENT: tl.constexpr, REST: tl.constexpr, PADDED: tl.constexpr, REST_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, QUERIES: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr, TILED: tl.constexpr,
):  # fmt: skip
    """Of a sequence without positions, zeros. `scale` counts in powers of two. TILED: `tiles` say which queries."""
    split = tl.program_id(2)
    if TILED:
        sequence = tl.load(tiles + tl.program_id(1) * 2).to(tl.int64)
        first = tl.load(tiles + tl.program_id(1) * 2 + 1)
    else:
        sequence = tl.program_id(1).to(tl.int64)
        first = tl.program_id(0) * QUERIES
    row_start = tl.load(row_starts + sequence).to(tl.int64)
    rows = (tl.load(row_starts + sequence + 1).to(tl.int64) - row_start).to(tl.int32)
    length = tl.load(lengths + sequence).to(tl.int32)
    number = first + tl.arange(0, QUERIES)
    mine = number < rows * HEADS
    position = length - rows + number // HEADS  # of each query
    end = tl.minimum(length, length - rows + (first + QUERIES - 1) // HEADS + 1)
    share = tl.cdiv(tl.cdiv(tl.maximum(end, 0), TILE), SPLITS) * TILE
    begin = split * share
    if (begin >= end) & (split > 0):
        return
    column, other = tl.arange(0, PADDED), tl.arange(0, REST_PADDED)
    place = row_start * HEADS + number
    within = mine[:, None] & (column < LATENT)[None, :]
    query = tl.load(q + place[:, None] * LATENT + column[None, :], mask=within, other=0.0)
    turned = tl.load(
        rest + place[:, None] * REST + other[None, :], mask=mine[:, None] & (other < REST)[None, :], other=0.0
    )
    peak = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    sums = tl.zeros([QUERIES, PADDED], tl.float32)
    table = tables + sequence * table_stride
    for start in range(begin, tl.minimum(begin + share, end), TILE):
        seen = start + tl.arange(0, TILE)
        valid = seen < end
        block = tl.load(table + seen // BLOCK_SIZE, mask=valid, other=0).to(tl.int64)
        cell = (block * BLOCK_SIZE + seen % BLOCK_SIZE) * (LATENT + REST)
        latent = tl.load(
            cache + cell[:, None] + column[None, :], mask=valid[:, None] & (column < LATENT)[None, :], other=0.0
        )
        latent = latent.to(query.dtype)
        key = tl.load(
            cache + cell[None, :] + LATENT + other[:, None], mask=valid[None, :] & (other < REST)[:, None], other=0.0
        )
        scores = tl.dot(query, tl.trans(latent), input_precision="ieee")
        scores = tl.dot(turned, key.to(query.dtype), scores, input_precision="ieee") * scale
        scores = tl.where(valid[None, :] & (seen[None, :] <= position[:, None]), scores, float("-inf"))
        highest = tl.maximum(peak, tl.max(scores, 1))
        base = tl.where(highest == float("-inf"), 0.0, highest)
        shrink = tl.exp2(peak - base)
        weights = tl.exp2(scores - base[:, None])
        total = total * shrink + tl.sum(weights, 1)
        sums = tl.dot(weights.to(query.dtype), latent, sums * shrink[:, None], input_precision="ieee")
        peak = highest
    target = out + place[:, None] * LATENT + column[None, :]
    count = tl.maximum(1, tl.cdiv(end, tl.maximum(share, 1)))
    if count == 1:
        result = sums / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(target, result.to(out.dtype.element_ty), mask=within)
    else:
        pair = sequence * tl.num_programs(0) + tl.program_id(0)
        line = pair * SPLITS * QUERIES + tl.arange(0, QUERIES)
        part = line + split * QUERIES
        tl.store(parts + part[:, None] * LATENT + column[None, :], sums, mask=within)
        tl.store(peaks + part * 2, peak)
        tl.store(peaks + part * 2 + 1, total)
        tl.debug_barrier()
        before = tl.atomic_add(arrived + pair, 1, sem="acq_rel")
        if before == count - 1:
            peak = tl.full([QUERIES], float("-inf"), tl.float32)
            for each in range(0, count):
                peak = tl.maximum(peak, tl.load(peaks + (line + each * QUERIES) * 2, cache_modifier=".cg"))
            total = tl.zeros([QUERIES], tl.float32)
            sums = tl.zeros([QUERIES, PADDED], tl.float32)
            for each in range(0, count):
                came = line + each * QUERIES
                factor = tl.exp2(tl.load(peaks + came * 2, cache_modifier=".cg") - peak)
                total += tl.load(peaks + came * 2 + 1, cache_modifier=".cg") * factor
                added = tl.load(
                    parts + came[:, None] * LATENT + column[None, :], mask=within, other=0.0, cache_modifier=".cg"
                )
                sums += added * factor[:, None]
            tl.store(target, (sums / total[:, None]).to(out.dtype.element_ty), mask=within)
            tl.store(arrived + pair, 0)


def plan_latent(context: KernelContext, step: Step, attention: Any) -> LatentPlan:
    """Nothing in it depends on the lengths of one-row sequences; of steps with `prompts` see `plan_attention`."""
    tuned, mixed = tuning(context.device), step.prompts is not None
    launch = tuned.latent if context.dtype.itemsize <= NARROW else WIDE
    single = step.num_sequences - 1 if mixed else step.num_single
    queries = max(LEAST, min(launch.rows, triton.next_power_of_2(attention.heads)))
    pairs = single * triton.cdiv(attention.heads, queries)
    splits = min(
        MOST_SPLITS, triton.next_power_of_2(max(1, tuned.programs // max(1, pairs // LIKELY if mixed else pairs)))
    )
    lengths = single_lengths(step) if mixed else step.lengths
    tiles = None if single == step.num_sequences else cut_prompts(step, queries, attention.heads)
    each = pairs * splits * queries if splits > 1 else 0
    widths = attention.value_width, 2
    parts, peaks = (torch.empty((each, width), dtype=torch.float32, device=context.device) for width in widths)
    arrived = torch.zeros(pairs, dtype=torch.int32, device=context.device)
    return LatentPlan(step, launch, queries, single, lengths, splits, tiles, parts, peaks, arrived)


def bind_latent_attention(op: Op, context: KernelContext) -> Kernel:
    """q, r -> y."""
    attention = of(op, Attention)
    cache, heads = pointed(context.keys[attention.cache]), attention.heads
    latent, rest = attention.value_width, cache.shape[3] - attention.value_width
    padded = tuple(max(LEAST, triton.next_power_of_2(each)) for each in (latent, rest))

    def kernel(plan: LatentPlan, query: Tensor, turned: Tensor) -> Tensor:
        query, turned, step = query.contiguous(), turned.contiguous(), plan.step
        out = torch.empty_like(query)
        over = query, turned, cache, step.tables
        meeting = plan.parts, plan.peaks, plan.arrived, step.tables.stride(0), attention.scale * LOG2E
        shape = heads, latent, rest, *padded, cache.shape[2], plan.queries, plan.launch.tile
        how = {"num_warps": plan.launch.warps, "num_stages": plan.launch.stages}
        if plan.single:
            grid = triton.cdiv(heads, plan.queries), plan.single, plan.splits
            of_single = *over, plan.lengths, step.row_starts, plan.tiles, out, *meeting
            latent_kernel[grid](*of_single, *shape, plan.splits, False, **how)
        if plan.tiles is not None:
            of_others = *over, step.lengths, step.row_starts, plan.tiles, out, *meeting
            latent_kernel[(1, len(plan.tiles), 1)](*of_others, *shape, 1, True, **how)
        return out

    return kernel
