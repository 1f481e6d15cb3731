# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
"""Rotation of queries and keys and the write of keys and values into the cache, in one launch a layer."""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from polyfleet.graph.ops import Op, RopeCache, of
from polyfleet.kernels.cached import pointed
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.dispatch import Kernel
from polyfleet.kernels.step import Step
from polyfleet.kernels.torch import batched
from polyfleet.kernels.triton.decode import fitted

HEADS = 8  # of a program


@dataclass(frozen=True, slots=True)
class RopePlan:
    """Angles and places of a step's rows; a negative place writes nothing."""

    cosine: Tensor  # [T, D / 2] float32
    sine: Tensor
    places: Tensor  # [T]


@triton.jit
def angles_kernel(positions, frequencies, cosine, sine, HALF: tl.constexpr, PADDED: tl.constexpr):
    """cos and sin of position * frequency of one row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, PADDED)
    inside = columns < HALF
    angles = tl.load(positions + row).to(tl.float32) * tl.load(frequencies + columns, mask=inside, other=0.0)
    tl.store(cosine + row * HALF + columns, tl.cos(angles), mask=inside)
    tl.store(sine + row * HALF + columns, tl.sin(angles), mask=inside)


@triton.jit
def rope_cache_kernel(
    qkv, cosine, sine, places, out, keys, values,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """Of one row, HEADS of its queries, keys and values."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    column = tl.arange(0, PADDED)[None, :]
    half = column < HALF
    mine = half & (head < Q_HEADS + 2 * KV_HEADS)
    source = qkv + row * (Q_HEADS + 2 * KV_HEADS) * 2 * HALF + head * 2 * HALF + column
    first = tl.load(source, mask=mine, other=0.0)
    second = tl.load(source + HALF, mask=mine, other=0.0)
    cos = tl.load(cosine + row * HALF + column, mask=half, other=0.0)
    sin = tl.load(sine + row * HALF + column, mask=half, other=0.0)
    wide, other = first.to(tl.float32), second.to(tl.float32)
    turned = (wide * cos - other * sin).to(first.dtype)
    turned_other = (other * cos + wide * sin).to(first.dtype)
    query = half & (head < Q_HEADS)
    target = out + row * Q_HEADS * 2 * HALF + head * 2 * HALF + column
    tl.store(target, turned, mask=query)
    tl.store(target + HALF, turned_other, mask=query)
    place = tl.load(places + row).to(tl.int64)
    written = half & (head >= Q_HEADS) & (place >= 0)
    key = written & (head < Q_HEADS + KV_HEADS)
    value = written & (head >= Q_HEADS + KV_HEADS) & (head < Q_HEADS + 2 * KV_HEADS)
    kv_head = (head - Q_HEADS) % KV_HEADS
    block, offset = place // BLOCK_SIZE, place % BLOCK_SIZE
    cell = ((block * KV_HEADS + kv_head) * BLOCK_SIZE + offset) * 2 * HALF + column
    tl.store(keys + cell, fitted(turned, keys), mask=key)
    tl.store(keys + cell + HALF, fitted(turned_other, keys), mask=key)
    tl.store(values + cell, fitted(first, values), mask=value)
    tl.store(values + cell + HALF, fitted(second, values), mask=value)


def plan_rope(context: KernelContext, step: Step, both: Any) -> RopePlan:
    """One table of angles for all layers."""
    frequencies = context.constants(both.rope.frequencies)
    half = len(frequencies)
    shape = (step.num_rows, half)
    cosine, sine = (torch.empty(shape, dtype=torch.float32, device=context.device) for _ in range(2))
    padded = triton.next_power_of_2(half)
    angles_kernel[(step.num_rows,)](step.positions, frequencies, cosine, sine, half, padded, num_warps=1)
    if both.rope.amplitude != 1:
        amplitudes = context.constants(both.rope.amplitudes)
        cosine, sine = cosine.mul_(amplitudes), sine.mul_(amplitudes)
    return RopePlan(cosine, sine, step.places)


def bind_rope_cache(op: Op, context: KernelContext) -> Kernel:
    """qkv -> q; k and v go to the cache."""
    both = of(op, RopeCache)
    heads, kv_heads, half = both.heads, both.kv_heads, both.rope.width // 2
    keys, values = pointed(context.keys[both.cache]), pointed(context.values[both.cache])
    shape = (heads, kv_heads, half, triton.next_power_of_2(half), context.block_size, HEADS)
    programs = triton.cdiv(heads + 2 * kv_heads, HEADS)
    normed = batched.bind_head_norms(op, context)

    def kernel(plan: RopePlan, qkv: Tensor) -> Tensor:
        qkv = normed(qkv).contiguous()
        out = torch.empty((len(qkv), heads * 2 * half), dtype=qkv.dtype, device=qkv.device)
        operands = (qkv, plan.cosine, plan.sine, plan.places, out, keys, values)
        rope_cache_kernel[(len(qkv), programs)](*operands, *shape, num_warps=2)
        return out

    return kernel
