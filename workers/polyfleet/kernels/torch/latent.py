"""Latent attention (DeepSeek-V2, arXiv 2405.04434) in torch, on any device: queries meet what is cached as it is.

N heads, C columns of a latent, R of a key's rest, T rows. A latent cache [1, num_blocks, 1, block_size, C + R].
"""

import torch
from torch import Tensor

from polyfleet.graph.ops import Attention, CacheWrite, Heads, Op, OpKind, of
from polyfleet.kernels.cached import loaded, stored
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.dispatch import Implementation, Kernel
from polyfleet.kernels.step import Step


def bind_head_linear(op: Op, context: KernelContext) -> Kernel:
    """x[T, N·A] -> y[T, N·B]."""
    count = of(op, Heads).count
    weight = context.dense(*op.weights)
    stack = weight.view(count, -1, weight.shape[1])

    def kernel(step: Step, x: Tensor) -> Tensor:
        heads = x.view(len(x), count, x.shape[1] // count).transpose(0, 1)
        return torch.bmm(heads, stack.mT).transpose(0, 1).flatten(1)

    return kernel


def bind_latent_write(op: Op, context: KernelContext) -> Kernel:
    """latent[T, C], key[T, R] -> nothing."""
    cache = context.keys[of(op, CacheWrite).cache]

    def kernel(step: Step, latent: Tensor, key: Tensor) -> tuple[()]:
        blocks, offsets = step.places // context.block_size, step.places % context.block_size
        cache[blocks, 0, offsets] = stored(torch.cat((latent, key), dim=-1), cache)
        return ()

    return kernel


def attend_latent(query: Tensor, rest: Tensor, cached: Tensor, start: int, attention: Attention) -> Tensor:
    """Causal attention of query[T, N, C] and rest[T, N, R] at positions from `start` on over cached[L, C + R]."""
    keys = cached.float()
    scores = torch.einsum("tnc,lc->ntl", torch.cat((query, rest), dim=-1).float(), keys) * attention.scale
    positions = torch.arange(start, start + len(query), device=query.device)
    hidden = torch.arange(len(keys), device=query.device) > positions[:, None]
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return torch.einsum("ntl,lc->tnc", weights, keys[:, : attention.value_width]).to(query.dtype)


def bind_latent_attention(op: Op, context: KernelContext) -> Kernel:
    """q[T, N·C], r[T, N·R] -> y[T, N·C], one sequence after the other."""
    attention = of(op, Attention)
    cache = context.keys[attention.cache]

    def kernel(step: Step, query: Tensor, rest: Tensor) -> Tensor:
        queries, rests = (each.view(len(each), attention.heads, -1) for each in (query, rest))
        out = torch.empty_like(queries)
        starts, lengths = step.host_row_starts.tolist(), step.host_lengths.tolist()
        for table, first, end, length in zip(step.tables, starts, starts[1:], lengths, strict=False):
            blocks = cache.index_select(0, table[: -(-length // context.block_size)])
            cached = loaded(blocks.flatten(0, 2)[:length], query.dtype)
            rows = slice(first, end)
            out[rows] = attend_latent(queries[rows], rests[rows], cached, length - (end - first), attention)
        return out.flatten(1)

    return kernel


LATENT = (
    Implementation(OpKind.HEAD_LINEAR, "reference", bind_head_linear, capturable=True),
    Implementation(OpKind.LATENT_WRITE, "reference", bind_latent_write),
    Implementation(OpKind.LATENT_ATTENTION, "reference", bind_latent_attention),
)
