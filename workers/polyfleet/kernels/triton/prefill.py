# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
"""Paged attention of sequences with several rows each: causal, over what is cached before them and over themselves."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from polyfleet.graph.ops import Attention
from polyfleet.kernels.step import Step, upload
from polyfleet.kernels.triton.decode import LEAST_ROWS, LOG2E, capped
from polyfleet.kernels.triton.tuning import SHORT_PREFILL, Launch


@dataclass(frozen=True, slots=True)
class PrefillPlan:
    """Which rows each program has, those with the longest context first."""

    step: Step
    launch: Launch
    tiles: Tensor  # [programs, 2] int32: a sequence, and its first row counted from its own


@triton.jit
def prefill_kernel(
    q, keys, values, tables, lengths, row_starts, tiles, out, sinks, table_stride, scale, cap, window,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, CAPPED: tl.constexpr, WINDOWED: tl.constexpr, SUNK: tl.constexpr,
):  # fmt: skip
    """One head of ROWS rows of a sequence. `scale`, `cap` and what is made of `sinks` count in powers of two."""
    head = tl.program_id(0)
    kv_head = head // GROUP
    sequence = tl.load(tiles + tl.program_id(1) * 2).to(tl.int64)
    first = tl.load(tiles + tl.program_id(1) * 2 + 1)
    row_start = tl.load(row_starts + sequence).to(tl.int64)
    rows = tl.load(row_starts + sequence + 1).to(tl.int32) - row_start.to(tl.int32)
    length = tl.load(lengths + sequence).to(tl.int32)
    row = first + tl.arange(0, ROWS)
    column = tl.arange(0, PADDED)
    mine = (row < rows)[:, None] & (column < WIDTH)[None, :]
    place = ((row_start + row)[:, None] * (KV_HEADS * GROUP) + head) * WIDTH + column[None, :]
    query = tl.load(q + place, mask=mine, other=0.0)
    position = length - rows + row  # of each row
    end = tl.minimum(length, length - rows + first + ROWS)
    full = (length - rows + first + 1) // TILE * TILE  # up to here every row sees every position
    table = tables + sequence * table_stride
    peak = tl.full([ROWS], 0.0 if SUNK else float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, PADDED], tl.float32)
    lowest = 0  # position that the first row sees
    if WINDOWED:
        lowest = tl.maximum(length - rows + first + 1 - window, 0)
    if SUNK:  # a logit without a value, before all others
        peak += tl.load(sinks + head) * 1.4426950408889634  # log2 e
        total += 1.0
    for start in range(lowest // TILE * TILE, end, TILE):
        seen = start + tl.arange(0, TILE)
        valid = seen < end
        if WINDOWED:
            valid = valid & (seen >= lowest)
        if BLOCK_SIZE % TILE == 0:  # a tile lies in one block
            block = tl.load(table + start // BLOCK_SIZE)
            line = (block * KV_HEADS + kv_head) * BLOCK_SIZE + start % BLOCK_SIZE + tl.arange(0, TILE)
        else:
            block = tl.load(table + seen // BLOCK_SIZE, mask=valid, other=0)
            line = (block * KV_HEADS + kv_head) * BLOCK_SIZE + seen % BLOCK_SIZE
        cell = line * WIDTH
        key = tl.load(
            keys + cell[None, :] + column[:, None], mask=valid[None, :] & (column < WIDTH)[:, None], other=0.0
        )
        scores = tl.dot(query, key.to(query.dtype), input_precision="ieee")
        unit = scale
        if CAPPED:
            scores, unit = capped(scores * scale, cap), 1.0
        if start >= full:
            scores = tl.where(seen[None, :] <= position[:, None], scores, float("-inf"))
        if WINDOWED:
            scores = tl.where(seen[None, :] > position[:, None] - window, scores, float("-inf"))
        highest = tl.maximum(peak, tl.max(scores, 1) * unit)
        base = tl.where(highest == float("-inf"), 0.0, highest)
        shrink = tl.exp2(peak - base)
        weights = tl.exp2(scores * unit - base[:, None])
        total = total * shrink + tl.sum(weights, 1)
        value = tl.load(
            values + cell[:, None] + column[None, :], mask=valid[:, None] & (column < WIDTH)[None, :], other=0.0
        )
        value = value.to(query.dtype)
        sums = tl.dot(weights.to(value.dtype), value, sums * shrink[:, None], input_precision="ieee")
        peak = highest
    result = sums / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(out + place, result.to(out.dtype.element_ty), mask=mine)


def plan_prefill(step: Step, long: Launch, short: Launch) -> PrefillPlan:
    """For the sequences with several rows, with launches for many rows and for few."""
    many = step.prompts is None and step.num_rows - step.num_single >= SHORT_PREFILL
    launch = long if many else short
    return PrefillPlan(step, launch, cut_prompts(step, launch.rows))


def cut_prompts(step: Step, size: int, each: int = 1) -> Tensor:
    """Tiles [programs, 2] of `size` neighbours, of which sequences behind those with one row have `each` a row; counted
    on the host, those with the longest context first, where it knows them."""
    if step.prompts is not None:
        return _cut_on_device(step, size, each)
    single = step.num_single
    counts = np.diff(step.host_row_starts)[single:]
    numbers = -(-counts * each // size)
    sequences = np.repeat(np.arange(len(counts)), numbers)
    firsts = (np.arange(len(sequences)) - np.repeat(numbers.cumsum() - numbers, numbers)) * size
    contexts = (step.host_lengths[single:] - counts)[sequences] + firsts // each
    order = np.argsort(-contexts, kind="stable")
    tiles = np.stack((sequences + single, firsts), axis=1)[order].astype(np.int32)
    return upload(tiles, step.tables.device)


def single_lengths(step: Step) -> Tensor:
    """Of sequences with one row, 0 of others, where the device alone knows which."""
    return torch.where(step.row_starts.diff() == 1, step.lengths, 0)


def _cut_on_device(step: Step, size: int, each: int) -> Tensor:
    """As many tiles as there can be; those too many are of the last sequence, which has no rows."""
    counts = step.row_starts.diff()
    numbers = torch.where(counts > 1, (counts * each + size - 1) // size, 0)
    ends = numbers.cumsum(0)
    tile = torch.arange(triton.cdiv(step.num_rows * each, size) + (step.prompts or 0), device=counts.device)
    sequence = torch.searchsorted(ends, tile, right=True).clamp_(max=len(counts) - 1)
    firsts = (tile - (ends - numbers).index_select(0, sequence)) * size
    return torch.stack((sequence, firsts), dim=1).int()


def prefill(
    attention: Attention, plan: PrefillPlan, q: Tensor, caches: Any, out: Tensor, sinks: Tensor | None = None
) -> None:
    """`out` of the rows of `q` behind those of sequences with one; caches and sinks are as in `decode`."""
    keys, values = caches
    step, launch, width = plan.step, plan.launch, attention.width
    prefill_kernel[(attention.heads, len(plan.tiles))](
        *(q, keys, values, step.tables, step.lengths, step.row_starts, plan.tiles, out, sinks),
        *(step.tables.stride(0), attention.scale * LOG2E, attention.soft_cap * LOG2E, attention.window),
        *(attention.kv_heads, attention.heads // attention.kv_heads),
        *(max(LEAST_ROWS, launch.rows), width, max(16, triton.next_power_of_2(width)), keys.shape[2], launch.tile),
        *(attention.soft_cap > 0, attention.window > 0, sinks is not None),
        num_warps=launch.warps,
        num_stages=launch.stages,
    )
