"""Implementations in plain torch that launch few ops a layer, on any device.

N heads, K KV heads, G = N / K heads a group, D columns of a head, T rows, B sequences, W blocks of a block table.
A cache [num_blocks, K, block_size, D] is read as [num_blocks * K, block_size * D], one row per block and
head, so that one index_select gathers a whole batch in attention's own layout [B, K, W * block_size, D].
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from polyfleet.graph.ops import Attention, Norm, Op, OpKind, RopeCache, of
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.dispatch import Implementation, Kernel
from polyfleet.kernels.step import Ints, Step, upload

SMALL_TABLE = 16  # blocks; shorter tables are padded to this many rather than split into more groups
GATHERED_BYTES = 2**28  # of keys, and as many of values, at once for a group of several sequences

STEADY_BACKENDS = [each for each in SDPBackend.__members__.values() if each.name not in ("ERROR", "CUDNN_ATTENTION")]


def steady_attention() -> AbstractContextManager[Any]:
    """For a whole step: torch's attention without cuDNN's, which plans anew, slowly, for every length it meets."""
    return sdpa_kernel(STEADY_BACKENDS)


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Sequences with one row each, whose block tables are of like length and padded to W blocks."""

    rows: Tensor | slice  # B rows of the step
    gather: Tensor  # [B * K * W] rows of the cache
    mask: Tensor | None  # [B, 1, 1, W * block_size], -inf behind each sequence's end; None for a single sequence
    length: int  # positions that are read: W * block_size, or the sequence's own of a single one


@dataclass(frozen=True, slots=True)
class PrefillRun:
    """A sequence with several rows of the step."""

    first: int
    last: int  # one behind its last row
    gather: Tensor  # [K * W]
    length: int
    mask: Tensor | None  # [rows, length], or None where rows start at position 0 and plain causality does


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """What paged attention shares over the layers of a step."""

    decodes: tuple[DecodeGroup, ...]
    prefills: tuple[PrefillRun, ...]


def plan_attention(context: KernelContext, step: Step, attention: Attention) -> AttentionPlan:
    """Group the one-row sequences by the length of their tables to within a factor of 2; others run one by one."""
    heads, groups = attention.kv_heads, _groups(context, step, attention)
    decodes = tuple(_plan_decodes(context, heads, step, rows, lengths) for rows, lengths in groups)
    prefills = range(step.num_single, step.num_sequences)
    return AttentionPlan(decodes, tuple(_plan_prefill(context, heads, step, each) for each in prefills))


def _groups(context: KernelContext, step: Step, attention: Attention) -> Iterator[tuple[Tensor | slice, Ints]]:
    """Of each group its rows, which are its sequences too, and their lengths."""
    lengths = step.host_lengths[: step.num_single]
    blocks = -(-lengths // context.block_size)
    sizes = np.frexp(np.maximum(SMALL_TABLE, blocks - 1))[1]  # bit lengths
    order, moved = np.arange(len(sizes)), None
    if len(sizes) and sizes.min() < sizes.max():
        order = np.argsort(sizes, kind="stable")
        moved = upload(order, context.device)
    block_bytes = context.block_size * attention.kv_heads * attention.width * context.dtype.itemsize
    first = 0
    while first < len(order):
        end = first + int(np.count_nonzero(sizes == sizes[order[first]]))
        most = max(1, GATHERED_BYTES // (block_bytes * int(blocks[order[first:end]].max())))
        for start in range(first, end, most):
            part = slice(start, min(end, start + most))
            yield part if moved is None else moved[part], lengths[order[part]]
        first = end


def _plan_decodes(
    context: KernelContext, kv_heads: int, step: Step, rows: Tensor | slice, lengths: Ints
) -> DecodeGroup:
    # A table is padded with its own last block: whatever stands behind a sequence's end can only be its own.
    width = int(-(-lengths.max() // context.block_size))
    gather = _cache_rows(kv_heads, step.tables[rows][:, :width])
    if len(lengths) == 1:
        return DecodeGroup(rows, gather, None, int(lengths[0]))
    span = width * context.block_size
    hidden = torch.arange(span, device=context.device) >= step.lengths[rows][:, None]
    mask = torch.zeros(hidden.shape, dtype=context.dtype, device=context.device).masked_fill_(hidden, float("-inf"))
    return DecodeGroup(rows, gather, mask[:, None, None], span)


def _plan_prefill(context: KernelContext, kv_heads: int, step: Step, sequence: int) -> PrefillRun:
    first, end = step.host_row_starts[sequence : sequence + 2].tolist()
    length = int(step.host_lengths[sequence])
    start, mask = length - (end - first), None
    if start:
        positions = torch.arange(length, device=context.device)
        mask = positions <= positions[start:, None]
    width = -(-length // context.block_size)
    return PrefillRun(first, end, _cache_rows(kv_heads, step.tables[sequence : sequence + 1, :width]), length, mask)


def _cache_rows(kv_heads: int, tables: Tensor) -> Tensor:
    """Rows [B * K * W] of the cache for the block tables [B, W], ordered by sequence, head, block."""
    heads = torch.arange(kv_heads, device=tables.device)
    return (tables[:, None] * kv_heads + heads[:, None]).flatten()


def bind_attention(op: Op, context: KernelContext) -> Kernel:
    """q -> y by scaled_dot_product_attention, all decodes of a group at once."""
    attention = of(op, Attention)
    kv_heads, head_dim, scale = attention.kv_heads, attention.width, attention.scale
    group = attention.heads // kv_heads
    keys = context.keys[attention.cache].view(-1, context.block_size * head_dim)
    values = context.values[attention.cache].view(-1, context.block_size * head_dim)

    def decode(each: DecodeGroup, q: Tensor) -> Tensor:
        k = keys.index_select(0, each.gather).view(len(q), kv_heads, -1, head_dim)[:, :, : each.length]
        v = values.index_select(0, each.gather).view(len(q), kv_heads, -1, head_dim)[:, :, : each.length]
        queries = q.view(len(q), kv_heads, group, head_dim)
        out = F.scaled_dot_product_attention(queries, k, v, attn_mask=each.mask, scale=scale)
        return out.reshape(q.shape)

    def prefill(each: PrefillRun, q: Tensor) -> Tensor:
        shape = (kv_heads, group, each.length, head_dim)
        k = keys.index_select(0, each.gather).view(kv_heads, 1, -1, head_dim)[:, :, : each.length].expand(shape)
        v = values.index_select(0, each.gather).view(kv_heads, 1, -1, head_dim)[:, :, : each.length].expand(shape)
        queries = q.view(len(q), kv_heads, group, head_dim).permute(1, 2, 0, 3)
        causal = each.mask is None
        out = F.scaled_dot_product_attention(queries, k, v, attn_mask=each.mask, is_causal=causal, scale=scale)
        return out.permute(2, 0, 1, 3).reshape(q.shape)

    def kernel(plan: AttentionPlan, q: Tensor) -> Tensor:
        if not plan.prefills and len(plan.decodes) == 1:
            return decode(plan.decodes[0], q)
        if not plan.decodes and len(plan.prefills) == 1:
            return prefill(plan.prefills[0], q)
        out = torch.empty_like(q)
        for each in plan.decodes:
            out[each.rows] = decode(each, q[each.rows])
        for run in plan.prefills:
            out[run.first : run.last] = prefill(run, q[run.first : run.last])
        return out

    return kernel


@dataclass(frozen=True, slots=True)
class RopePlan:
    """Angles and places of a step's rows."""

    cosine: Tensor  # [T, 1, D]
    sine: Tensor  # [T, 1, D], negative in the first half
    places: Tensor  # [T * K] rows of the cache read as [num_blocks * K * block_size, D]


def plan_rope(context: KernelContext, step: Step, both: RopeCache) -> RopePlan:
    """One table of angles and one of places for all layers."""
    block_size = context.block_size
    angles = step.positions.float()[:, None, None] * context.constants(both.rope.frequencies)
    cosine, sine = angles.cos(), angles.sin()
    blocks = torch.div(step.places, block_size, rounding_mode="floor")
    heads = torch.arange(both.kv_heads, device=context.device)
    places = (blocks[:, None] * both.kv_heads + heads) * block_size + (step.places % block_size)[:, None]
    return RopePlan(torch.cat((cosine, cosine), -1), torch.cat((-sine, sine), -1), places.flatten())


def bind_rope_cache(op: Op, context: KernelContext) -> Kernel:
    """Rotates q and k together, in float32, and writes the cache by row."""
    both = of(op, RopeCache)
    heads, kv_heads, head_dim = both.heads, both.kv_heads, both.rope.width
    rotated_heads, half = heads + kv_heads, head_dim // 2
    keys, values = context.keys[both.cache].view(-1, head_dim), context.values[both.cache].view(-1, head_dim)

    def kernel(plan: RopePlan, qkv: Tensor) -> Tensor:
        rows = qkv.view(len(qkv), rotated_heads + kv_heads, head_dim)
        straight = rows[:, :rotated_heads].float()
        rotated = torch.addcmul(straight * plan.cosine, straight.roll(half, -1), plan.sine).to(qkv.dtype)
        keys.index_copy_(0, plan.places, rotated[:, heads:].reshape(-1, head_dim))
        values.index_copy_(0, plan.places, rows[:, rotated_heads:].reshape(-1, head_dim))
        return rotated[:, :heads].reshape(len(qkv), -1)

    return kernel


def bind_rms_norm(op: Op, context: KernelContext) -> Kernel:
    """x -> y in one call; accumulates in float32 in every dtype."""
    weight, eps = context.vector(*op.weights), of(op, Norm).eps
    shape = (len(weight),)
    return lambda step, x: F.rms_norm(x, shape, weight, eps)


def bind_add_rms_norm(op: Op, context: KernelContext) -> Kernel:
    """x, residual -> y, residual'."""
    weight, eps = context.vector(*op.weights), of(op, Norm).eps
    shape = (len(weight),)

    def kernel(step: Step, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        total = x + residual
        return F.rms_norm(total, shape, weight, eps), total

    return kernel


BATCHED = (
    Implementation(OpKind.RMS_NORM, "torch", bind_rms_norm, rank=1),
    Implementation(OpKind.ADD_RMS_NORM, "torch", bind_add_rms_norm, rank=1),
    Implementation(OpKind.ROPE_CACHE, "batched", bind_rope_cache, plan_rope, rank=1),
    Implementation(OpKind.PAGED_ATTENTION, "sdpa", bind_attention, plan_attention, rank=1),
)
