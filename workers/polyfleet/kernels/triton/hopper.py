# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
"""Attention of prompts on compute capability 9.0, in Gluon: the scores of the tile to come are made beside softmax.

It does what `prefill` does where that suffices: bfloat16, blocks of 64, heads of 64 or 128, no window, cap or sinks.
Blocks are copied by the device's own engine, and products run by whole warp groups, two tiles' at a time. Gluon is the
part of Triton that leaves layouts and waiting to the kernel; its interface is that of one release, and is not
interpreted, so elsewhere the portable kernel stays.
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

from polyfleet.graph.ops import Attention
from polyfleet.kernels.context import KernelContext

BLOCK_SIZE = 64  # tokens of a block, and of a tile
WIDTHS = (64, 128)  # of heads
LAYOUT = gl.NVMMASharedLayout(128, 16, 2)  # of tiles in shared memory
AVAILABLE = triton.__version__.startswith("3.6.")


def fits(attention: Attention, context: KernelContext, *, sinks: bool) -> bool:
    """Whether this kernel computes such an attention over such caches; on what device is for tuning to say."""
    plain = attention.causal and not attention.window and not attention.soft_cap and not sinks
    cache = context.keys[attention.cache]  # of another type than what is computed in, where bytes are kept
    stored = context.dtype is cache.dtype is torch.bfloat16 and context.block_size == BLOCK_SIZE
    return AVAILABLE and plain and stored and attention.width in WIDTHS


def described(cache: Tensor) -> Any:
    """A cache [blocks, kv heads, 64, width], each block and head a tile that is copied as one."""
    width = cache.shape[-1]
    lines = cache.numel() // width
    return TensorDescriptor(cache.view(lines, width), [lines, width], [width, 1], [BLOCK_SIZE, width], LAYOUT)


@gluon.jit
def copy_block(source, into, bars, place, line, present, TILE: gl.constexpr, WIDTH: gl.constexpr):
    """Begin to fill one place of a ring; its barrier tells of the end."""
    mbarrier.expect(bars.index(place), TILE * WIDTH * 2, pred=present)
    tma.async_copy_global_to_shared(source, [line, 0], bars.index(place), into.index(place), pred=present)


@gluon.jit
def weigh(scores, peak, total, start, full, position, scale, TILE: gl.constexpr, SCORES: gl.constexpr):
    """Softmax so far: weights of a tile's scores, the new peak and total, and what all before shrink by."""
    if start >= full:
        seen = start + gl.arange(0, TILE, layout=gl.SliceLayout(0, SCORES))
        scores = gl.where(seen[None, :] <= position[:, None], scores, float("-inf"))
    highest = gl.maximum(peak, gl.max(scores, 1) * scale)
    shrink = gl.exp2(peak - highest)
    weights = gl.exp2(scores * scale - highest[:, None])
    return weights, highest, total * shrink + gl.sum(weights, 1), shrink


@gluon.jit
def hopper_prefill_kernel(
    q, keys, values, tables, lengths, row_starts, tiles, out, table_stride, scale,
    KV_HEADS: gl.constexpr, GROUP: gl.constexpr, ROWS: gl.constexpr, WIDTH: gl.constexpr, TILE: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """One head of ROWS rows of a sequence, as `prefill_kernel`; keys and values are `described`."""
    WARPS: gl.constexpr = gl.num_warps()
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, TILE, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, WIDTH, 16])
    CHOSEN: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    LOADED: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [WARPS, 1], [1, 0])
    SHARED: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    head = gl.program_id(0)
    kv_head = head // GROUP
    sequence = gl.load(tiles + gl.program_id(1) * 2).to(gl.int64)
    first = gl.load(tiles + gl.program_id(1) * 2 + 1)
    row_start = gl.load(row_starts + sequence).to(gl.int64)
    rows = gl.load(row_starts + sequence + 1).to(gl.int32) - row_start.to(gl.int32)
    length = gl.load(lengths + sequence).to(gl.int32)
    table = tables + sequence * table_stride
    end = gl.minimum(length, length - rows + first + ROWS)
    full = (length - rows + first + 1) // TILE * TILE  # up to here every row sees every position
    count = (end + TILE - 1) // TILE
    k_ring = gl.allocate_shared_memory(gl.bfloat16, [STAGES, TILE, WIDTH], SHARED)
    v_ring = gl.allocate_shared_memory(gl.bfloat16, [STAGES, TILE, WIDTH], SHARED)
    k_bars = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_bars = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for each in gl.static_range(STAGES):
        mbarrier.init(k_bars.index(each), count=1)
        mbarrier.init(v_bars.index(each), count=1)
    fence_async_shared()
    for each in gl.static_range(STAGES):
        line = (gl.load(table + gl.minimum(each, count - 1)).to(gl.int32) * KV_HEADS + kv_head) * TILE
        copy_block(keys, k_ring, k_bars, each, line, each < count, TILE, WIDTH)
        copy_block(values, v_ring, v_bars, each, line, each < count, TILE, WIDTH)
    row = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, LOADED))
    column = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, LOADED))
    place = ((row_start + row)[:, None] * (KV_HEADS * GROUP) + head) * WIDTH + column[None, :]
    loaded = gl.load(q + place, mask=(row < rows)[:, None], other=0.0)
    query = gl.allocate_shared_memory(gl.bfloat16, [ROWS, WIDTH], SHARED, loaded)
    fence_async_shared()
    position = length - rows + first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, SCORES))
    zeros = gl.zeros([ROWS, TILE], gl.float32, SCORES)
    peak = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, SCORES))
    total = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, SCORES))
    sums = gl.zeros([ROWS, WIDTH], gl.float32, SUMS)
    mbarrier.wait(k_bars.index(0), 0)
    scores = warpgroup_mma(query, k_ring.index(0).permute((1, 0)), zeros, use_acc=False)
    weights, peak, total, shrink = weigh(scores, peak, total, 0, full, position, scale, TILE, SCORES)
    chosen = gl.convert_layout(weights.to(gl.bfloat16), CHOSEN)
    line = (gl.load(table + gl.minimum(STAGES, count - 1)).to(gl.int32) * KV_HEADS + kv_head) * TILE
    copy_block(keys, k_ring, k_bars, 0, line, count > STAGES, TILE, WIDTH)
    for number in range(1, count):
        here, before = number % STAGES, (number - 1) % STAGES
        k_line = (gl.load(table + gl.minimum(number + STAGES, count - 1)).to(gl.int32) * KV_HEADS + kv_head) * TILE
        v_line = (gl.load(table + gl.minimum(number - 1 + STAGES, count - 1)).to(gl.int32) * KV_HEADS + kv_head) * TILE
        mbarrier.wait(k_bars.index(here), (number // STAGES) & 1)
        made = warpgroup_mma(query, k_ring.index(here).permute((1, 0)), zeros, use_acc=False, is_async=True)
        mbarrier.wait(v_bars.index(before), ((number - 1) // STAGES) & 1)
        added = warpgroup_mma(chosen, v_ring.index(before), sums, is_async=True)
        scores = warpgroup_mma_wait(1, deps=[made])
        copy_block(keys, k_ring, k_bars, here, k_line, number + STAGES < count, TILE, WIDTH)
        weights, peak, total, shrink = weigh(scores, peak, total, number * TILE, full, position, scale, TILE, SCORES)
        sums = warpgroup_mma_wait(0, deps=[added])
        sums = sums * gl.convert_layout(shrink, gl.SliceLayout(1, SUMS))[:, None]
        chosen = gl.convert_layout(weights.to(gl.bfloat16), CHOSEN)
        copy_block(values, v_ring, v_bars, before, v_line, number - 1 + STAGES < count, TILE, WIDTH)
    last = count - 1
    mbarrier.wait(v_bars.index(last % STAGES), (last // STAGES) & 1)
    sums = warpgroup_mma(chosen, v_ring.index(last % STAGES), sums)
    result = sums / gl.convert_layout(total, gl.SliceLayout(1, SUMS))[:, None]
    for each in gl.static_range(STAGES):
        mbarrier.invalidate(k_bars.index(each))
        mbarrier.invalidate(v_bars.index(each))
    row = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, SUMS))
    column = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, SUMS))
    place = ((row_start + row)[:, None] * (KV_HEADS * GROUP) + head) * WIDTH + column[None, :]
    gl.store(out + place, result.to(gl.bfloat16), mask=(row < rows)[:, None])


def hopper_prefill(attention: Attention, plan: Any, q: Tensor, caches: tuple[Any, ...], out: Tensor) -> None:
    """`out` of the rows of `q` behind those of sequences with one; `caches` are keys and values, `described`."""
    step, launch, heads = plan.step, plan.launch, attention.heads
    hopper_prefill_kernel[(heads, len(plan.tiles))](
        *(q, *caches, step.tables, step.lengths, step.row_starts, plan.tiles, out, step.tables.stride(0)),
        *(attention.scale * 1.4426950408889634, attention.kv_heads, heads // attention.kv_heads, launch.rows),
        *(attention.width, BLOCK_SIZE, launch.stages),
        num_warps=launch.warps,
    )
