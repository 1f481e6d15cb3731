# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
"""Paged attention of sequences with one row each.

A program has all queries of one KV head of one sequence, and one of SPLITS equal parts of its context, as the device
knows its length; so nothing of a launch depends on lengths, and graphs can hold it. The part that is done last puts
them together, in their order. Where it turns queries and keys too, the row's own key and value go to the cache and
count from where they are.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from polyfleet.graph.ops import Attention
from polyfleet.kernels.triton.chaining import gdc_launch_dependents, gdc_wait
from polyfleet.kernels.triton.tuning import Tuning

LOG2E = 1.4426950408889634
LEAST_ROWS = 16  # of a matrix product


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """What layers share: the cut, and where parts meet."""

    rows: int
    splits: int
    tables: Tensor  # [>= rows, W]
    lengths: Tensor  # [>= rows]
    parts: Tensor  # [rows * K * splits * G, D] float32
    peaks: Tensor  # [rows * K * splits * G, 2] float32: each part's maximum and sum
    arrived: Tensor  # [rows * K] int32, all 0 between launches


@dataclass(frozen=True, slots=True)
class Turn:
    """What turns a step's queries and keys, and where its keys and values go."""

    cosine: Tensor  # [T, D / 2] float32
    sine: Tensor
    places: Tensor  # [T]; a negative one writes nothing
    norms: tuple[Tensor, ...] = ()  # [D] of queries and keys, of each head
    eps: float = 0.0


@triton.jit
def fitted(numbers, cache):
    """The numbers as a cache holds them."""
    if cache.dtype.element_ty == tl.float8e4nv:
        return tl.minimum(tl.maximum(numbers.to(tl.float32), -448.0), 448.0).to(tl.float8e4nv)  # its largest numbers
    else:
        return numbers


@triton.jit
def capped(scores, cap):
    """cap * tanh(scores / cap), all counted in powers of two as scores are."""
    return cap - 2 * cap / (tl.exp2(scores * (2.8853900817779268 / cap)) + 1)  # 2 / ln 2


@triton.jit
def turned(heads, column, inside, cosine, sine, norm, eps, WIDTH: tl.constexpr, NORMED: tl.constexpr):
    """Heads [., 1] of columns [1, .], normed and turned: pairs are (i, i + WIDTH / 2)."""
    partner = (column + WIDTH // 2) % WIDTH
    mine = tl.load(heads + column, mask=inside, other=0.0)
    theirs = tl.load(heads + partner, mask=inside, other=0.0)
    wide, other = mine.to(tl.float32), theirs.to(tl.float32)
    if NORMED:
        scale = tl.rsqrt(tl.sum(wide * wide, 1) / WIDTH + eps)[:, None]
        real = column < WIDTH
        kept = norm.dtype.element_ty  # products of a wide norm are rounded once
        wide = (wide * scale).to(kept).to(tl.float32) * tl.load(norm + column, mask=real, other=0.0)
        other = (other * scale).to(kept).to(tl.float32) * tl.load(norm + partner, mask=real, other=0.0)
    turn = tl.where(column < WIDTH // 2, -sine, sine)
    return (wide * cosine + other * turn).to(mine.dtype)


@triton.jit
def decode_kernel(
    q, keys, values, tables, lengths, out, parts, peaks, arrived, cosine, sine, places, q_norm, k_norm, sinks,
    table_stride, scale, eps, cap, window,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr, TURNED: tl.constexpr, NORMED: tl.constexpr,
    CHAINED: tl.constexpr, CAPPED: tl.constexpr, WINDOWED: tl.constexpr, SUNK: tl.constexpr,
):  # fmt: skip
    """Of a sequence without positions, zeros. `scale`, `cap` and what is made of `sinks` count in powers of two.

    TURNED: q are qkv as linears made them, and the first part has the row's own position beside its share of others.
    """
    head = tl.program_id(0)
    sequence = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    length = tl.load(lengths + sequence).to(tl.int32)
    own = (split == 0) & (length > 0)
    lowest = 0  # position that the row sees
    if WINDOWED:
        lowest = tl.maximum(length - window, 0)
    origin = lowest // TILE * TILE
    if TURNED:
        length = tl.maximum(length - 1, 0)
    share = tl.cdiv(tl.cdiv(tl.maximum(length - origin, 0), TILE), SPLITS) * TILE
    begin = origin + split * share
    if (begin >= length) & (split > 0):
        return
    row = tl.arange(0, ROWS)
    column = tl.arange(0, PADDED)
    mine = (row < GROUP)[:, None] & (column < WIDTH)[None, :]
    place = ((sequence * KV_HEADS + head) * GROUP + row)[:, None] * WIDTH + column[None, :]
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, PADDED], tl.float32)
    if SUNK:  # a logit without a value, before all others of the first part
        sink = tl.load(sinks + head * GROUP + row, mask=row < GROUP, other=0.0) * 1.4426950408889634  # log2 e
        peak = tl.where(split == 0, sink, peak)
        total += tl.where(split == 0, 1.0, 0.0)
    if TURNED:
        angle = sequence * (WIDTH // 2) + column[None, :] % (WIDTH // 2)
        cos, sin = tl.load(cosine + angle), tl.load(sine + angle)
        at = tl.load(places + sequence).to(tl.int64)
        if CHAINED:  # what no kernel right before this one has made is here already
            gdc_wait()
            gdc_launch_dependents()
        line = q + sequence * (KV_HEADS * (GROUP + 2) * WIDTH)
        heads = line + (head * GROUP + row)[:, None] * WIDTH
        query = turned(heads, column[None, :], mine, cos, sin, q_norm, eps, WIDTH, NORMED)
        one = tl.arange(0, 1)[:, None] + KV_HEADS * GROUP + head
        real = (column < WIDTH)[None, :]
        new_key = turned(line + one * WIDTH, column[None, :], real, cos, sin, k_norm, eps, WIDTH, NORMED)
        new_value = tl.load(line + (one + KV_HEADS) * WIDTH + column[None, :], mask=real, other=0.0)
        into = ((at // BLOCK_SIZE * KV_HEADS + head) * BLOCK_SIZE + at % BLOCK_SIZE) * WIDTH + column[None, :]
        held_key, held_value = fitted(new_key, keys), fitted(new_value, values)
        tl.store(keys + into, held_key, mask=real & (at >= 0) & (split == 0))
        tl.store(values + into, held_value, mask=real & (at >= 0) & (split == 0))
        new_key, new_value = held_key.to(query.dtype), held_value.to(query.dtype)
        if own:
            score = tl.sum(query.to(tl.float32) * new_key.to(tl.float32), 1) * scale
            if CAPPED:
                score = capped(score, cap)
            highest = tl.maximum(peak, score)
            weight = tl.exp2(score - highest)
            total = total * tl.exp2(peak - highest) + weight
            sums += weight[:, None] * new_value.to(tl.float32)
            peak = highest
    else:
        query = tl.load(q + place, mask=mine, other=0.0)
    table = tables + sequence * table_stride
    for start in range(begin, tl.minimum(begin + share, length), TILE):
        position = start + tl.arange(0, TILE)
        valid = position < length
        if WINDOWED:
            valid = valid & (position >= lowest)
        block = tl.load(table + position // BLOCK_SIZE, mask=valid, other=0).to(tl.int64)
        cell = ((block * KV_HEADS + head) * BLOCK_SIZE + position % BLOCK_SIZE) * WIDTH
        key = tl.load(
            keys + cell[None, :] + column[:, None], mask=valid[None, :] & (column < WIDTH)[:, None], other=0.0
        )
        scores = tl.dot(query, key.to(query.dtype), input_precision="ieee") * scale
        if CAPPED:
            scores = capped(scores, cap)
        scores = tl.where(valid[None, :], scores, float("-inf"))
        highest = tl.maximum(peak, tl.max(scores, 1))
        shrink = tl.exp2(peak - highest)
        weights = tl.exp2(scores - highest[:, None])
        total = total * shrink + tl.sum(weights, 1)
        value = tl.load(
            values + cell[:, None] + column[None, :], mask=valid[:, None] & (column < WIDTH)[None, :], other=0.0
        )
        value = value.to(query.dtype)
        sums = tl.dot(weights.to(value.dtype), value, sums * shrink[:, None], input_precision="ieee")
        peak = highest
    count = tl.maximum(1, tl.cdiv(length - origin, tl.maximum(share, 1)))
    if count == 1:
        result = sums / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(out + place, result.to(out.dtype.element_ty), mask=mine)
    else:
        first = ((sequence * KV_HEADS + head) * SPLITS) * GROUP
        part = first + split * GROUP + row
        tl.store(parts + part[:, None] * WIDTH + column[None, :], sums, mask=mine)
        tl.store(peaks + part * 2, peak, mask=row < GROUP)
        tl.store(peaks + part * 2 + 1, total, mask=row < GROUP)
        tl.debug_barrier()
        before = tl.atomic_add(arrived + sequence * KV_HEADS + head, 1, sem="acq_rel")
        if before == count - 1:
            each = tl.arange(0, SPLITS)
            for number in tl.static_range(GROUP):
                mine_of_all = first + each * GROUP + number
                came = each < count
                high = tl.load(peaks + mine_of_all * 2, mask=came, other=float("-inf"), cache_modifier=".cg")
                amount = tl.load(peaks + mine_of_all * 2 + 1, mask=came, other=0.0, cache_modifier=".cg")
                factor = tl.exp2(high - tl.max(high, 0))
                values_of = tl.load(
                    parts + mine_of_all[:, None] * WIDTH + column[None, :],
                    mask=came[:, None] & (column < WIDTH)[None, :],
                    other=0.0,
                    cache_modifier=".cg",
                )
                result = tl.sum(values_of * factor[:, None], 0) / tl.sum(amount * factor, 0)
                target = out + ((sequence * KV_HEADS + head) * GROUP + number) * WIDTH + column
                tl.store(target, result.to(out.dtype.element_ty), mask=column < WIDTH)
            tl.store(arrived + sequence * KV_HEADS + head, 0)


def plan_decode(
    attention: Attention, tables: Tensor, lengths: Tensor, rows: int, tuned: Tuning, likely: int = 0
) -> DecodePlan:
    """For the first `rows` sequences, whatever their lengths; `likely` so many of them have any, 0: all."""
    pairs = rows * attention.kv_heads
    busy = (likely or rows) * attention.kv_heads
    splits = min(tuned.most_splits, triton.next_power_of_2(max(1, tuned.programs // busy)))
    each = pairs * splits * (attention.heads // attention.kv_heads)

    def floats(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=tables.device)

    arrived = torch.zeros(pairs, dtype=torch.int32, device=tables.device)
    return DecodePlan(rows, splits, tables, lengths, floats(each, attention.width), floats(each, 2), arrived)


def decode(
    attention: Attention,
    tuned: Tuning,
    plan: DecodePlan,
    q: Tensor,
    caches: Any,
    out: Tensor,
    *,
    turn: Turn | None = None,
    sinks: Tensor | None = None,
) -> None:
    """`out` of the first rows of `q`, of qkv where they are to be turned; `caches` are keys and values.

    `sinks` [N] in float32 where heads have some.
    """
    keys, values = caches
    norms = turn.norms if turn and turn.norms else (None, None)
    turning = (None, None, None) if turn is None else (turn.cosine, turn.sine, turn.places)
    group, width = attention.heads // attention.kv_heads, attention.width
    launch, chained = tuned.decode, tuned.chained and turn is not None
    options = {"launch_pdl": True} if chained else {}
    decode_kernel[(attention.kv_heads, plan.rows, plan.splits)](
        *(q, keys, values, plan.tables, plan.lengths, out, plan.parts, plan.peaks, plan.arrived),
        *(*turning, *norms, sinks, plan.tables.stride(0), attention.scale * LOG2E, turn.eps if turn else 0.0),
        *(attention.soft_cap * LOG2E, attention.window),
        *(attention.kv_heads, group),
        *(max(LEAST_ROWS, triton.next_power_of_2(group)), width, max(16, triton.next_power_of_2(width))),
        *(keys.shape[2], launch.tile, plan.splits, turn is not None, bool(turn and turn.norms), chained),
        *(attention.soft_cap > 0, attention.window > 0, sinks is not None),
        num_warps=launch.warps,
        num_stages=launch.stages,
        **options,
    )
