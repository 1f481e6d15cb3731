# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
"""Attention of prompts on compute capability 9.0, in Gluon: two warp groups take turns with the matrix unit.

It does what `prefill` does where that suffices: bfloat16, blocks of 64, heads of 64 or 128, no window, cap or sinks.
One warp has the device's own engine copy tiles of queries, keys and values into rings in shared memory; each of two
warp groups computes 64 rows, and while one makes weights of its scores, products of the other run. Gluon is the part of
Triton that leaves layouts and waiting to the kernel; its interface is that of one release, and is not interpreted, so
elsewhere the portable kernel stays.
"""

from functools import cache as once
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

from polyfleet.graph.ops import Attention
from polyfleet.kernels.context import KernelContext

BLOCK_SIZE = 64  # tokens of a block; rows and columns of what is copied at once; rows of a warp group
WIDTHS = (64, 128)  # of heads
LAYOUT = gl.NVMMASharedLayout(128, 16, 2)  # of tiles in shared memory
AVAILABLE = triton.__version__.startswith("3.6.")
TILE = gl.constexpr(128)  # rows of a program, and positions of the context at once
STAGES = gl.constexpr(2)  # tiles in a ring


def fits(attention: Attention, context: KernelContext, *, sinks: bool) -> bool:
    """Whether this kernel computes such an attention over such caches; on what device is for tuning to say."""
    plain = attention.causal and not attention.window and not attention.soft_cap and not sinks
    cache = context.keys[attention.cache]  # of another type than what is computed in, where bytes are kept
    stored = context.dtype is cache.dtype is torch.bfloat16 and context.block_size == BLOCK_SIZE
    return AVAILABLE and plain and stored and attention.width in WIDTHS


def described(rows: Tensor) -> Any:
    """What lies in rows side by side, the last axis, copied by squares."""
    width = rows.shape[-1]
    lines = rows.numel() // width
    return TensorDescriptor(rows.view(lines, width), [lines, width], [width, 1], [BLOCK_SIZE, BLOCK_SIZE], LAYOUT)


@gluon.jit
def ring_of(WIDTH: gl.constexpr):
    """Tiles [TILE, WIDTH] as squares, barriers that tell which are there, and which both warp groups have done with."""
    LAID: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    squares = gl.allocate_shared_memory(gl.bfloat16, [STAGES * TILE // 64 * (WIDTH // 64), 64, 64], LAID)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for each in gl.static_range(STAGES):
        mbarrier.init(full.index(each), count=1)
        mbarrier.init(empty.index(each), count=2)
    return squares, full, empty


@gluon.jit
def fill(source, ring, step, upper, lower, column, WIDTH: gl.constexpr, HALVED: gl.constexpr):
    """Begin to fill a ring's next place by squares of the upper and lower half of a tile, beside each other or, where
    it is HALVED, as two tiles."""
    squares, full, empty = ring
    ACROSS: gl.constexpr = WIDTH // 64
    place = step % STAGES
    bar = full.index(place)
    mbarrier.wait(empty.index(place), (step // STAGES + 1) & 1)
    mbarrier.expect(bar, TILE * WIDTH * 2)
    for each in gl.static_range(ACROSS):
        first = place * 2 * ACROSS + (each if HALVED else 2 * each)
        second = first + (ACROSS if HALVED else 1)
        tma.async_copy_global_to_shared(source, [upper, column + each * 64], bar, squares.index(first))
        tma.async_copy_global_to_shared(source, [lower, column + each * 64], bar, squares.index(second))


@gluon.jit
def tile_of(ring, place, HEIGHT: gl.constexpr, WIDTH: gl.constexpr):
    """A tile, or half of one, as products read it."""
    LAID: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    return ring[0]._reinterpret(gl.bfloat16, [STAGES * TILE // HEIGHT, HEIGHT, WIDTH], LAID).index(place)


@gluon.jit
def arrived(ring, step):
    """The place of a ring's next tile, once it is there."""
    place = step % STAGES
    mbarrier.wait(ring[1].index(place), (step // STAGES) & 1)
    return place


@gluon.jit
def leave(ring, step):
    """One warp group has done with a tile."""
    mbarrier.arrive(ring[2].index(step % STAGES), count=1)


@gluon.jit
def turns_of(works):
    """How many works this program has."""
    whole = works // gl.num_programs(0)
    return whole + (work_at(whole) < works).to(gl.int32)


@gluon.jit
def work_at(turn):
    """Programs choose forwards and backwards in turn, so that all get about as much of what is sorted by size."""
    number, programs = gl.program_id(0), gl.num_programs(0)
    return turn * programs + gl.where(turn % 2 == 0, number, programs - 1 - number)


@gluon.jit
def rows_of(turn, batch, HEADS: gl.constexpr):
    """Of a work: head; its sequence's table, length, rows, where they start; the first that is meant, what they see."""
    tables, lengths, row_starts, tiles, table_stride = batch
    work = work_at(turn)
    tile = tiles + work // HEADS * 2
    sequence = gl.load(tile).to(gl.int64)
    row_start = gl.load(row_starts + sequence).to(gl.int32)
    rows = gl.load(row_starts + sequence + 1).to(gl.int32) - row_start
    length = gl.load(lengths + sequence).to(gl.int32)
    first = gl.load(tile + 1)
    end = gl.minimum(length, length - rows + first + TILE)
    return work % HEADS, tables + sequence * table_stride, length, rows, row_start, first, end


@gluon.jit
def produce(
    queries, keys, values, rings, batch, works, HEADS: gl.constexpr, KV_HEADS: gl.constexpr, WIDTH: gl.constexpr
):
    """Fill the rings as fast as they empty."""
    step = 0
    for turn in range(turns_of(works)):
        head, table, _, _, row_start, first, end = rows_of(turn, batch, HEADS)
        row = row_start + first
        fill(queries, rings[0], turn, row, row + 64, head * WIDTH, WIDTH, True)
        last = (end - 1) // 64
        kv_head = head // (HEADS // KV_HEADS)
        for number in range((end + TILE - 1) // TILE):
            upper = (gl.load(table + 2 * number).to(gl.int32) * KV_HEADS + kv_head) * 64
            lower = (gl.load(table + gl.minimum(2 * number + 1, last)).to(gl.int32) * KV_HEADS + kv_head) * 64
            fill(keys, rings[1], step, upper, lower, 0, WIDTH, False)
            fill(values, rings[2], step, upper, lower, 0, WIDTH, False)
            step += 1


@gluon.jit
def weigh(scores, peak, total, start, full, position, scale, SCORES: gl.constexpr, SUMS: gl.constexpr):
    """Softmax so far: weights of a tile's scores, the new peak and total, and what all before shrink by."""
    if start >= full:
        seen = start + gl.arange(0, TILE, layout=gl.SliceLayout(0, SCORES))
        scores = gl.where(seen[None, :] <= position[:, None], scores, float("-inf"))
    highest = gl.maximum(peak, gl.max(scores, 1) * scale)
    shrink = gl.exp2(peak - highest)
    weights = gl.exp2(scores * scale - highest[:, None])
    total = total * shrink + gl.sum(weights, 1)
    chosen = gl.convert_layout(weights.to(gl.bfloat16), gl.DotOperandLayout(0, SUMS, 2))
    return chosen, highest, total, gl.convert_layout(shrink, gl.SliceLayout(1, SUMS))


@gluon.jit
def write(result, out, head, row_start, rows, first, HEADS: gl.constexpr, WIDTH: gl.constexpr):
    """The rows of a warp group that there are, each thread's columns side by side."""
    LAID: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    row = first + gl.arange(0, 64, layout=gl.SliceLayout(1, LAID))
    column = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, LAID))
    cell = ((row_start + row).to(gl.int64)[:, None] * HEADS + head) * WIDTH + column[None, :]
    gl.store(out + cell, gl.convert_layout(result.to(gl.bfloat16), LAID), mask=(row < rows)[:, None])


@gluon.jit
def consume(WHICH: gl.constexpr, out, rings, turns, batch, works, scale, HEADS: gl.constexpr, WIDTH: gl.constexpr):
    """One warp group: the upper or the lower half of each tile of rows. In turn with the other it issues the products
    of the tile to come and of the one that has weights, which run while the other makes weights."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    ROWS: gl.constexpr = gl.SliceLayout(1, SCORES)
    queries, keys, values = rings
    zeros = gl.zeros([64, TILE], gl.float32, SCORES)
    step = 0
    issued = 0
    for turn in range(turns_of(works)):
        head, _, length, rows, row_start, first, end = rows_of(turn, batch, HEADS)
        first += WHICH * 64
        position = length - rows + first + gl.arange(0, 64, layout=ROWS)
        full = (length - rows + first + 1) // TILE * TILE  # up to here every row sees every position
        sums = gl.zeros([64, WIDTH], gl.float32, SUMS)
        query = tile_of(queries, arrived(queries, turn) * 2 + WHICH, 64, WIDTH)
        key = tile_of(keys, arrived(keys, step), TILE, WIDTH).permute((1, 0))
        scores = warpgroup_mma_wait(0, [warpgroup_mma(query, key, zeros, use_acc=False, is_async=True)])
        leave(keys, step)
        peak, total = gl.full([64], float("-inf"), gl.float32, ROWS), gl.zeros([64], gl.float32, ROWS)
        chosen, peak, total, shrink = weigh(scores, peak, total, 0, full, position, scale, SCORES, SUMS)
        for number in range(1, (end + TILE - 1) // TILE):
            key = tile_of(keys, arrived(keys, step + 1), TILE, WIDTH).permute((1, 0))
            mbarrier.wait(turns.index(WHICH), (issued + 1 - WHICH) & 1)
            made = warpgroup_mma(query, key, zeros, use_acc=False, is_async=True)
            value = tile_of(values, arrived(values, step), TILE, WIDTH)
            added = warpgroup_mma(chosen, value, sums, is_async=True)
            mbarrier.arrive(turns.index(1 - WHICH), count=1)
            scores = warpgroup_mma_wait(1, [made])
            leave(keys, step + 1)
            weights, peak, total, shrink = weigh(
                scores, peak, total, number * TILE, full, position, scale, SCORES, SUMS
            )
            sums = warpgroup_mma_wait(0, [added]) * shrink[:, None]
            leave(values, step)
            chosen = weights
            step += 1
            issued += 1
        leave(queries, turn)
        value = tile_of(values, arrived(values, step), TILE, WIDTH)
        sums = warpgroup_mma_wait(0, [warpgroup_mma(chosen, value, sums, is_async=True)])
        leave(values, step)
        step += 1
        whole = gl.convert_layout(total, gl.SliceLayout(1, SUMS))[:, None]
        write(sums / whole, out, head, row_start, rows, first, HEADS, WIDTH)


@gluon.jit(do_not_specialize=("works", "table_stride"))
def hopper_prefill_kernel(
    queries, keys, values, tables, lengths, row_starts, tiles, out, table_stride, works, scale,
    HEADS: gl.constexpr, KV_HEADS: gl.constexpr, WIDTH: gl.constexpr,
):  # fmt: skip
    """Heads of rows of sequences, as `prefill_kernel`, in turn; queries, keys and values are `described`."""
    rings = (ring_of(WIDTH), ring_of(WIDTH), ring_of(WIDTH))
    turns = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for each in gl.static_range(2):
        mbarrier.init(turns.index(each), count=1)
    fence_async_shared()
    batch = (tables, lengths, row_starts, tiles, table_stride)
    gl.warp_specialize(
        [
            (consume, (0, out, rings, turns, batch, works, scale, HEADS, WIDTH)),
            (consume, (1, out, rings, turns, batch, works, scale, HEADS, WIDTH)),
            (produce, (queries, keys, values, rings, batch, works, HEADS, KV_HEADS, WIDTH)),
        ],
        [4, 1],  # warps of the others
        [240, 24],  # and registers of their threads
    )


@once
def processors(device: torch.device) -> int:
    """The multiprocessors of a device, of which each runs one program."""
    return int(torch.get_device_module(device).get_device_properties(device).multi_processor_count)


def hopper_prefill(attention: Attention, plan: Any, q: Tensor, caches: tuple[Any, ...], out: Tensor) -> None:
    """`out` of the rows of `q` behind those of sequences with one; `caches` are keys and values, `described`."""
    step, works = plan.step, attention.heads * len(plan.tiles)
    hopper_prefill_kernel[(min(works, processors(q.device)),)](
        *(described(q.view(len(q), -1)), *caches, step.tables, step.lengths, step.row_starts, plan.tiles, out),
        *(step.tables.stride(0), works, attention.scale * 1.4426950408889634),
        *(attention.heads, attention.kv_heads, attention.width),
        num_warps=4,  # of one warp group; the other and those that copy come on top
    )
