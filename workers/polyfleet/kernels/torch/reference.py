"""Reference implementations: each op as its definition says, in torch, right on any device and in any dtype.

Norms, rotations and softmax are computed in float32 whatever the dtype. N heads, K KV heads, D columns of a head,
T rows, S selected rows; a block of a cache is [K, block_size, D].
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from polyfleet.graph.ops import Attention, CacheWrite, Factor, Norm, Op, OpKind, Rope, RopeAttention, RopeCache, of
from polyfleet.kernels.cached import loaded, stored
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.dispatch import Implementation, Kernel
from polyfleet.kernels.step import Step
from polyfleet.kernels.torch.adapting import ADAPTERS
from polyfleet.kernels.torch.collective import COLLECTIVE
from polyfleet.kernels.torch.elementwise import ELEMENTWISE
from polyfleet.kernels.torch.embedding import EMBEDDING
from polyfleet.kernels.torch.experts import EXPERTS
from polyfleet.kernels.torch.latent import LATENT
from polyfleet.kernels.torch.narrow import NARROW
from polyfleet.kernels.torch.recurrent import RECURRENT


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x²) + eps) * weight (Zhang and Sennrich, arXiv 1910.07467); rounded once by a wide weight."""
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (scaled.to(weight.dtype) * weight).to(x.dtype)


def bind_rms_norm(op: Op, context: KernelContext) -> Kernel:
    """x -> y."""
    norm = of(op, Norm)
    weight = context.gain(*op.weights, wide=norm.wide)
    if norm.width:
        of_heads = weight.view(-1, norm.width)  # one of all heads, or each one's own
        return lambda step, x: rms_norm(x.unflatten(1, (-1, norm.width)), of_heads, norm.eps).flatten(1)
    return lambda step, x: rms_norm(x, weight, norm.eps)


def bind_add_rms_norm(op: Op, context: KernelContext) -> Kernel:
    """x, residual -> y, residual'."""
    weight, eps = context.gain(*op.weights, wide=of(op, Norm).wide), of(op, Norm).eps

    def kernel(step: Step, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        total = x + residual
        return rms_norm(total, weight, eps), total

    return kernel


def bind_linear(op: Op, context: KernelContext) -> Kernel:
    """x -> x @ Wᵀ + b."""
    weight = context.dense(*op.weights)
    bias = context.vector(*op.biases) if op.biases else None
    return lambda step, x: F.linear(x, weight, bias)


def rotate(x: Tensor, positions: Tensor, inverse_frequencies: Tensor, amplitudes: Tensor | float = 1.0) -> Tensor:
    """Rotary embedding of x[T, heads, D], whose pairs are (i, i + D/2), in float32."""
    angles = positions.float()[:, None, None] * inverse_frequencies  # [T, 1, D/2]
    first, second = x.float().chunk(2, dim=-1)
    cosine, sine = angles.cos() * amplitudes, angles.sin() * amplitudes
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1).to(x.dtype)


def write_cache(context: KernelContext, cache: int, step: Step, k: Tensor, v: Tensor) -> None:
    """Store keys and values [T, K, D] of the step's rows."""
    blocks, offsets = step.places // context.block_size, step.places % context.block_size
    keys, values = context.keys[cache], context.values[cache]
    keys[blocks, :, offsets] = stored(k, keys)
    values[blocks, :, offsets] = stored(v, values)


def bind_rope(op: Op, context: KernelContext) -> Kernel:
    """x -> y."""
    rope = of(op, Rope)
    constants = context.constants(rope.frequencies), context.constants(rope.amplitudes)
    return lambda step, x: rotate(x.view(len(x), -1, rope.width), step.positions, *constants).flatten(1)


def bind_cache_write(op: Op, context: KernelContext) -> Kernel:
    """k, v -> nothing."""
    cache = of(op, CacheWrite).cache
    heads = context.keys[cache].shape[1]

    def kernel(step: Step, k: Tensor, v: Tensor) -> tuple[()]:
        write_cache(context, cache, step, k.view(len(k), heads, -1), v.view(len(v), heads, -1))
        return ()

    return kernel


def bind_rope_cache(op: Op, context: KernelContext) -> Kernel:
    """qkv -> q; k and v go to the cache."""
    both = of(op, RopeCache)
    constants = context.constants(both.rope.frequencies), context.constants(both.rope.amplitudes)
    norms = [context.gain(name, wide=both.wide) for name in op.weights]

    def kernel(step: Step, qkv: Tensor) -> Tensor:
        rows = qkv.view(len(qkv), -1, both.rope.width)
        q, k, v = torch.split(rows, [both.heads, both.kv_heads, both.kv_heads], dim=1)
        if norms:
            q, k = (rms_norm(each, norm, both.eps) for each, norm in zip((q, k), norms, strict=True))
        write_cache(context, both.cache, step, rotate(k, step.positions, *constants), v)
        return rotate(q, step.positions, *constants).flatten(1)

    return kernel


def cap(scores: Tensor, most: float) -> Tensor:
    """most * tanh(scores / most); the scores themselves for 0."""
    return most * torch.tanh(scores / most) if most else scores


def unseen(positions: Tensor, length: int, window: int) -> Tensor:
    """Which of the positions up to `length` rows at `positions` don't see: [T, length]."""
    others = torch.arange(length, device=positions.device)
    hidden = others > positions[:, None]
    return hidden | (others <= positions[:, None] - window) if window else hidden


def sunk_softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Softmax over the last axis, of which sinks, broadcast to one more column, take their shares."""
    if sinks is None:
        return scores.softmax(-1)
    peaks = torch.maximum(scores.amax(-1, keepdim=True), sinks)
    masses = (scores - peaks).exp()
    return masses / (masses.sum(-1, keepdim=True) + (sinks - peaks).exp())


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    start: int,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
    sinks: Tensor | None = None,
    *,
    causal: bool = True,
) -> Tensor:
    """Attention of q[T, N, D] at positions from `start` on over k and v [K, L, D]; gives [T, N, D]."""
    rows, heads, head_dim = q.shape
    queries = q.float().view(rows, len(k), heads // len(k), head_dim)
    scores = cap(torch.einsum("tkgd,kld->kgtl", queries, k.float()) * scale, soft_cap)
    hidden = unseen(torch.arange(start, start + rows, device=q.device), k.shape[1], window) & causal
    shaped = None if sinks is None else sinks.view(len(k), -1, 1, 1)
    weights = sunk_softmax(scores.masked_fill(hidden, float("-inf")), shaped)
    return torch.einsum("kgtl,kld->tkgd", weights, v.float()).reshape(q.shape).to(q.dtype)


def gather(cache: Tensor, table: Tensor, length: int) -> Tensor:
    """The first `length` positions of one sequence out of a cache: [K, length, D]."""
    blocks = cache.index_select(0, table[: -(-length // cache.shape[2])]).transpose(0, 1)
    return blocks.reshape(len(blocks), -1, cache.shape[-1])[:, :length]


def bind_paged_attention(op: Op, context: KernelContext) -> Kernel:
    """q -> y, one sequence after the other."""
    attention = of(op, Attention)
    keys, values = context.keys[attention.cache], context.values[attention.cache]
    sinks = context.wide(*op.weights) if op.weights else None

    def kernel(step: Step, q: Tensor) -> Tensor:
        out = torch.empty_like(q)
        starts, lengths = step.host_row_starts.tolist(), step.host_lengths.tolist()
        for table, first, end, length in zip(step.tables, starts, starts[1:], lengths, strict=False):
            queries = q[first:end].view(-1, attention.heads, attention.width)
            k, v = (loaded(gather(each, table, length), q.dtype) for each in (keys, values))
            limits = attention.scale, attention.window, attention.soft_cap, sinks
            out[first:end] = attend(queries, k, v, length - (end - first), *limits, causal=attention.causal).flatten(1)
        return out

    return kernel


def bind_scale(op: Op, context: KernelContext) -> Kernel:
    """x -> x * factor."""
    factor = of(op, Factor).factor
    return lambda step, x: x * factor


def bind_soft_cap(op: Op, context: KernelContext) -> Kernel:
    """x -> cap * tanh(x / cap), in float32."""
    most = of(op, Factor).factor
    return lambda step, x: cap(x.float(), most).to(x.dtype)


def bind_layer_norm(op: Op, context: KernelContext) -> Kernel:
    """x -> (x - mean(x)) / sqrt(variance(x) + eps) * weight (+ bias) (Ba et al., arXiv 1607.06450), in float32."""
    weight, eps = context.vector(*op.weights).float(), of(op, Norm).eps
    bias = context.vector(*op.biases).float() if op.biases else None
    return lambda step, x: F.layer_norm(x.float(), weight.shape, weight, bias, eps).to(x.dtype)


def bind_argmax(op: Op, context: KernelContext) -> Kernel:
    """x -> ids[., 1], int64. The column is found by hand: which of equal numbers torch's own takes is not said."""

    def kernel(step: Step, x: Tensor) -> Tensor:
        broken = x.isnan()
        found = torch.where(broken.any(-1, keepdim=True), broken, x == x.amax(-1, keepdim=True))
        columns = torch.arange(x.shape[-1], device=x.device)
        return torch.where(found, columns, x.shape[-1]).amin(-1, keepdim=True)

    return kernel


def bind_silu_mul(op: Op, context: KernelContext) -> Kernel:
    """[gate, up] -> silu(gate) * up."""

    def kernel(step: Step, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up

    return kernel


def bind_rope_attention(op: Op, context: KernelContext) -> Kernel:
    """qkv -> y."""
    both = of(op, RopeAttention)
    rope = bind_rope_cache(replace(op, attributes=both.rope), context)
    attention = bind_paged_attention(replace(op, weights=(), attributes=both.attention), context)
    return lambda step, qkv: attention(step, rope(step, qkv))


def bind_select_rows(op: Op, context: KernelContext) -> Kernel:
    """x -> x[selected]."""
    return lambda step, x: x.index_select(0, step.selected)


REFERENCE = (
    *NARROW,
    Implementation(OpKind.ROPE_ATTENTION, "reference", bind_rope_attention),
    Implementation(OpKind.SCALE, "reference", bind_scale, capturable=True),
    Implementation(OpKind.SOFT_CAP, "reference", bind_soft_cap, capturable=True),
    Implementation(OpKind.LAYER_NORM, "reference", bind_layer_norm, capturable=True),
    Implementation(OpKind.ARGMAX, "reference", bind_argmax, capturable=True),
    Implementation(OpKind.ROPE, "reference", bind_rope, capturable=True),
    Implementation(OpKind.CACHE_WRITE, "reference", bind_cache_write),
    EMBEDDING,
    Implementation(OpKind.RMS_NORM, "reference", bind_rms_norm, capturable=True),
    Implementation(OpKind.ADD_RMS_NORM, "reference", bind_add_rms_norm, capturable=True),
    Implementation(OpKind.LINEAR, "reference", bind_linear, capturable=True),
    Implementation(OpKind.ROPE_CACHE, "reference", bind_rope_cache),
    Implementation(OpKind.PAGED_ATTENTION, "reference", bind_paged_attention),
    Implementation(OpKind.SILU_MUL, "reference", bind_silu_mul, capturable=True),
    Implementation(OpKind.SELECT_ROWS, "reference", bind_select_rows, capturable=True),
    *ADAPTERS,
    *COLLECTIVE,
    *ELEMENTWISE,
    *EXPERTS,
    *LATENT,
    *RECURRENT,
)
