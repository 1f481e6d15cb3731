"""Implementations in plain torch that launch few ops a layer, on any device.

N heads, K KV heads, G = N / K heads a group, D columns of a head, T rows, B sequences, W blocks of a block table.
A cache [2, num_blocks, K, block_size, D] is read as [2 * num_blocks * K, block_size, D], one row per block and head of
keys or values, so that one index_select gathers a whole batch in attention's own layout [B, 2, K, W * block_size, D].
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from polyfleet.graph.ops import Attention, Op, OpKind, RopeCache, of
from polyfleet.kernels.cached import loaded, stored
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.dispatch import Implementation, Kernel
from polyfleet.kernels.step import Ints, Step, upload
from polyfleet.kernels.torch.norms import NORMS, rms_norm
from polyfleet.kernels.torch.reference import cap, sunk_softmax, unseen

SMALL_TABLE = 16  # blocks; shorter tables are padded to this many rather than split into more groups
GATHERED_BYTES = 2**28  # of keys, and as many of values, at once for a group of several sequences


def prefer_steady_attention() -> None:
    """Torch's attention without cuDNN's, which plans anew, slowly, for every length it meets; for the process."""
    torch.backends.cuda.enable_cudnn_sdp(False)


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Sequences with one row each, whose block tables are of like length and padded to W blocks."""

    rows: Tensor | slice  # B rows of the step
    gather: Tensor  # [B * 2 * K * W] rows of the cache
    mask: Tensor | None  # [B, 1, 1, W * block_size], -inf behind each sequence's end; None for a single sequence
    length: int  # positions that are read: W * block_size, or the sequence's own of a single one


@dataclass(frozen=True, slots=True)
class PrefillRun:
    """A sequence with several rows of the step."""

    first: int
    last: int  # one behind its last row
    gather: Tensor  # [2 * K * W]
    length: int
    mask: Tensor | None  # [rows, length], or None where plain causality, or none, does
    causal: bool = False  # whether it does


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """What paged attention shares over the layers of a step."""

    decodes: tuple[DecodeGroup, ...]
    prefills: tuple[PrefillRun, ...]


def plan_attention(context: KernelContext, step: Step, attention: Attention) -> AttentionPlan:
    """Group the one-row sequences by the length of their tables to within a factor of 2; others run one by one."""
    groups = _groups(context, step, attention)
    decodes = tuple(_plan_decodes(context, attention, step, rows, lengths) for rows, lengths in groups)
    prefills = range(step.num_single, step.num_sequences)
    return AttentionPlan(decodes, tuple(_plan_prefill(context, attention, step, each) for each in prefills))


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
    context: KernelContext, attention: Attention, step: Step, rows: Tensor | slice, lengths: Ints
) -> DecodeGroup:
    # A table is padded with its own last block: whatever stands behind a sequence's end can only be its own.
    width = int(-(-lengths.max() // context.block_size))
    gather = _cache_rows(context, attention, step.tables[rows][:, :width])
    window = attention.window if attention.window < int(lengths.max()) else 0
    if len(lengths) == 1 and not window:
        return DecodeGroup(rows, gather, None, int(lengths[0]))
    span = width * context.block_size
    mask = torch.empty((len(lengths), 1, 1, span), dtype=context.dtype, device=context.device)
    places, ends = torch.arange(span, device=context.device), step.lengths[rows][:, None, None, None]
    if window:
        hidden = unseen(ends.flatten() - 1, span, window)[:, None, None]
        return DecodeGroup(rows, gather, mask.zero_().masked_fill_(hidden, float("-inf")), span)
    return DecodeGroup(rows, gather, torch.lt(places, ends, out=mask).log_(), span)  # 1 is to be seen, 0 is not


def _plan_prefill(context: KernelContext, attention: Attention, step: Step, sequence: int) -> PrefillRun:
    first, end = step.host_row_starts[sequence : sequence + 2].tolist()
    length = int(step.host_lengths[sequence])
    start, mask = length - (end - first), None
    if attention.causal and (start or 0 < attention.window < length):
        positions = torch.arange(start, length, device=context.device)
        mask = unseen(positions, length, attention.window).logical_not_()
    table = step.tables[sequence : sequence + 1, : -(-length // context.block_size)]
    causal = attention.causal and mask is None
    return PrefillRun(first, end, _cache_rows(context, attention, table), length, mask, causal)


def _cache_rows(context: KernelContext, attention: Attention, tables: Tensor) -> Tensor:
    """Rows [B * 2 * K * W] of the cache for the block tables [B, W]: by sequence, keys or values, head, block."""
    num_blocks, kv_heads = context.caches[attention.cache].shape[1], attention.kv_heads
    name = ("cache rows", kv_heads, num_blocks)
    if name not in context.prepared:
        heads = torch.arange(kv_heads, device=context.device)
        context.prepared[name] = torch.cat((heads, heads + num_blocks * kv_heads))[:, None]
    return torch.add(context.prepared[name], tables[:, None], alpha=kv_heads).flatten()


def _attend_by(scale: float, most: float) -> Callable[..., Tensor]:
    """Attention as (queries, keys, values, mask, causal, sinks) -> values, with products capped unless `most` is 0.

    Sinks, where there are some, have the shape of products, but for an axis of 1.
    """

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, sinks: Tensor | None) -> Tensor:
        if not most and sinks is None:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale)
        scores = cap(torch.matmul(q.float(), k.float().mT) * scale, most)
        if causal:
            mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril_()
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype is torch.bool else scores + mask
        return torch.matmul(sunk_softmax(scores, sinks).to(v.dtype), v)

    return attend


def bind_attention(op: Op, context: KernelContext) -> Kernel:
    """q -> y by scaled_dot_product_attention, all decodes of a group at once."""
    attention = of(op, Attention)
    kv_heads, head_dim, group = attention.kv_heads, attention.width, attention.heads // attention.kv_heads
    attend = _attend_by(attention.scale, attention.soft_cap)
    sinks = context.wide(*op.weights).view(kv_heads, group, 1) if op.weights else None
    cache = context.caches[attention.cache].flatten(0, 2)  # [rows, block_size, columns]

    def gathered(each: DecodeGroup | PrefillRun, count: int) -> tuple[Tensor, Tensor]:
        """Keys and values [count, K, length, D]."""
        pairs = loaded(cache.index_select(0, each.gather), context.dtype)
        head = pairs.numel() // (2 * count * kv_heads)  # numbers of one, up to the end of its last block
        shape, strides = (count, kv_heads, each.length, head_dim), (2 * kv_heads * head, head, head_dim, 1)
        return pairs.as_strided(shape, strides), pairs.as_strided(shape, strides, kv_heads * head)

    def decode(each: DecodeGroup, q: Tensor) -> Tensor:
        k, v = gathered(each, len(q))
        queries = q.view(len(q), kv_heads, group, head_dim)
        return attend(queries, k, v, each.mask, False, sinks).reshape(q.shape)

    def prefill(each: PrefillRun, q: Tensor) -> Tensor:
        shape = (kv_heads, group, each.length, head_dim)
        k, v = (part.transpose(0, 1).expand(shape) for part in gathered(each, 1))
        queries = q.view(len(q), kv_heads, group, head_dim).permute(1, 2, 0, 3)
        out = attend(queries, k, v, each.mask, each.causal, sinks if sinks is None else sinks[..., None])
        return out.permute(2, 0, 1, 3).reshape(q.shape)

    def kernel(plan: AttentionPlan, q: Tensor) -> Tensor:
        if not plan.prefills and len(plan.decodes) == 1:
            return decode(plan.decodes[0], q)
        if not plan.decodes and len(plan.prefills) == 1:
            return prefill(plan.prefills[0], q)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        for each in plan.decodes:
            out[each.rows] = decode(each, q[each.rows])
        for run in plan.prefills:
            out[run.first : run.last] = prefill(run, q[run.first : run.last])
        return out

    return kernel


@dataclass(frozen=True, slots=True)
class RopePlan:
    """Angles and places of a step's rows."""

    straight: Tensor  # [T, 1, 2, D / 2] what the first half of a head is multiplied by: cosines, sines
    crossed: Tensor  # [T, 1, 2, D / 2] and the second one: -sines, cosines
    places: tuple[Tensor, Tensor]  # [T] each: block and offset in the cache


def plan_rope(context: KernelContext, step: Step, both: RopeCache) -> RopePlan:
    """One table of angles for all layers."""
    angles = step.positions[:, None] * context.constants(both.rope.frequencies)
    table = torch.empty((step.num_rows, 1, 3, angles.shape[1]), dtype=torch.float32, device=context.device)
    negative, cosine, sine = table.select(1, 0).unbind(1)
    torch.cos(angles, out=cosine)
    torch.sin(angles, out=sine)
    if both.rope.amplitude != 1:
        table.select(1, 0)[:, 1:].mul_(context.constants(both.rope.amplitudes))
    torch.neg(sine, out=negative)
    return RopePlan(table[:, :, 1:], table[:, :, :2], (step.blocks, step.offsets))


def bind_head_norms(op: Op, context: KernelContext) -> Callable[[Tensor], Tensor]:
    """qkv -> the same with the heads of q and k normalised, where the rope_cache has norms."""
    both = of(op, RopeCache)
    norms = [context.gain(name, wide=both.wide) for name in op.weights]
    counts, width = [both.heads, both.kv_heads, both.kv_heads], both.rope.width
    if not norms:
        return lambda qkv: qkv

    def normed(qkv: Tensor) -> Tensor:
        q, k, v = torch.split(qkv.view(len(qkv), -1, width), counts, dim=1)
        q, k = (rms_norm(each, norm, both.eps) for each, norm in zip((q, k), norms, strict=True))
        return torch.cat((q, k, v), dim=1).flatten(1)

    return normed


def bind_rope_cache(op: Op, context: KernelContext) -> Kernel:
    """Rotates q and k together, in float32, and writes the cache by row. q are the first columns of wider rows."""
    both = of(op, RopeCache)
    heads, kv_heads, head_dim = both.heads, both.kv_heads, both.rope.width
    rotated, width, half = heads + kv_heads, heads * head_dim, head_dim // 2
    keys, values = (cache[both.cache].transpose(1, 2) for cache in (context.keys, context.values))
    normed = bind_head_norms(op, context)

    def kernel(plan: RopePlan, qkv: Tensor) -> Tensor:
        qkv = normed(qkv)
        count, row, first = len(qkv), qkv.stride(0), qkv.storage_offset()
        halves = (count, rotated, 1, half), (row, head_dim, half, 1)
        out = torch.empty((count, rotated, 2, half), dtype=qkv.dtype, device=qkv.device)
        straight = qkv.as_strided(*halves) * plan.straight
        torch.addcmul(straight, qkv.as_strided(*halves, first + half), plan.crossed, out=out)
        shape, tail = (count, kv_heads, head_dim), (head_dim, 1)
        keys.index_put_(plan.places, stored(out.as_strided(shape, (rotated * head_dim, *tail), width), keys))
        values.index_put_(plan.places, stored(qkv.as_strided(shape, (row, *tail), first + rotated * head_dim), values))
        return out.as_strided((count, width), (rotated * head_dim, 1))

    return kernel


def bind_linear(op: Op, context: KernelContext) -> Kernel:
    """x -> x @ Wᵀ + b, without the ways on which torch finds out each time that both are matrices."""
    weight = context.dense(*op.weights).t()
    if not op.biases:
        return lambda step, x: torch.mm(x, weight)
    bias = context.vector(*op.biases)
    return lambda step, x: torch.addmm(bias, x, weight)


def bind_silu_mul(op: Op, context: KernelContext) -> Kernel:
    """[gate, up] -> silu(gate) * up."""

    def kernel(step: Step, gate_up: Tensor) -> Tensor:
        width = gate_up.shape[1] // 2
        gate, up = torch.split_with_sizes(gate_up, (width, width), 1)
        return F.silu(gate).mul_(up)

    return kernel


BATCHED = (
    *NORMS,
    Implementation(OpKind.LINEAR, "torch", bind_linear, capturable=True, rank=1),
    Implementation(OpKind.SILU_MUL, "torch", bind_silu_mul, capturable=True, rank=1),
    Implementation(OpKind.ROPE_CACHE, "batched", bind_rope_cache, plan_rope, rank=1),
    Implementation(OpKind.PAGED_ATTENTION, "sdpa", bind_attention, plan_attention, rank=1),
)
