"""Bound kernels of steps with few rows, and linears whose weights stay quantised: see `graph.narrow` and `linear`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polyfleet.graph.ops import Norm, Op, RopeAttention, of
from polyfleet.kernels.cached import pointed
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.dispatch import Kernel
from polyfleet.kernels.step import Step
from polyfleet.kernels.torch import batched
from polyfleet.kernels.triton.attention import fits
from polyfleet.kernels.triton.decode import DecodePlan, Turn, decode, plan_decode
from polyfleet.kernels.triton.linear import Operands, linear, streamed, unpacked
from polyfleet.kernels.triton.matrices import Matrix
from polyfleet.kernels.triton.rope import plan_rope
from polyfleet.kernels.triton.shrink import bind_grown
from polyfleet.kernels.triton.tuning import tuning

SLICES = 2  # of most_rows each; more rows meet the weights unpacked


def bind_linear(op: Op, context: KernelContext) -> Kernel:
    """x -> x @ Wᵀ + b; dense weights are left to torch."""
    weight = context.matrix(*op.weights)
    if isinstance(weight, Tensor):
        return batched.bind_linear(op, context)
    matrix, tuned = Matrix.of(weight, context.device), tuning(context.device)
    bias = context.vector(*op.biases) if op.biases else None
    given = Operands(bias=bias)

    def kernel(step: Step, x: Tensor) -> Tensor:
        if not len(x):
            return x.new_empty((0, matrix.rows))  # behind select_rows, where nothing is drawn
        if len(x) <= SLICES * tuned.most_rows:
            each = len(x) if streamed(matrix, tuned, x) else tuned.most_rows
            pieces = [linear(matrix, tuned, piece, given)[0] for piece in torch.split(x, each)]
            return pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        out = torch.mm(x, unpacked(matrix, tuned, x.dtype).t())
        return out if bias is None else out.add_(bias)

    return kernel


def bind_gain(op: Op, context: KernelContext) -> Kernel:
    """x -> gained, squares."""
    gain = context.vector(*op.weights)

    def kernel(step: Step, x: Tensor) -> tuple[Tensor, Tensor]:
        return x * gain, x.float().square().sum(-1, keepdim=True)

    return kernel


def bind_linear_add(op: Op, context: KernelContext) -> Kernel:
    """x, y -> total, gained, squares."""
    matrix, tuned = Matrix.of(context.matrix(*op.weights[:-1]), context.device), tuning(context.device)
    gain, grown = context.vector(op.weights[-1]), bind_grown(op.weights[:-1], context)

    def kernel(step: Step, x: Tensor, y: Tensor, *low: Tensor) -> tuple[Tensor, ...]:
        return linear(matrix, tuned, x, Operands(residual=y.contiguous(), gain=gain, grown=grown(step, *low)))

    return kernel


def bind_norm_linear(op: Op, context: KernelContext) -> Kernel:
    """gained, squares -> y."""
    return _behind_norm(op, context, silu=False)


def bind_norm_silu_mul(op: Op, context: KernelContext) -> Kernel:
    """gained, squares -> y."""
    return _behind_norm(op, context, silu=True)


def _behind_norm(op: Op, context: KernelContext, *, silu: bool) -> Kernel:
    matrix, tuned = Matrix.of(context.matrix(*op.weights), context.device), tuning(context.device)
    bias, eps = context.vector(*op.biases) if op.biases else None, of(op, Norm).eps
    grown = bind_grown(op.weights, context)

    def kernel(step: Step, x: Tensor, squares: Tensor, *low: Tensor) -> Tensor:
        given = Operands(squares.contiguous(), eps, bias, grown=grown(step, *low))
        return linear(matrix, tuned, x, given, silu=silu)[0]

    return kernel


@dataclass(frozen=True, slots=True)
class RopeAttentionPlan:
    """What layers share."""

    decode: DecodePlan
    cosine: Tensor
    sine: Tensor
    places: Tensor


def plan_rope_attention(context: KernelContext, step: Step, both: Any) -> RopeAttentionPlan:
    """Of a step in which every sequence has one row."""
    angles = plan_rope(context, step, both.rope)
    decodes = plan_decode(both.attention, step.tables, step.lengths, step.num_sequences, tuning(context.device))
    return RopeAttentionPlan(decodes, angles.cosine, angles.sine, angles.places)


def bind_rope_attention(op: Op, context: KernelContext) -> Kernel:
    """qkv -> y."""
    both, tuned = of(op, RopeAttention), tuning(context.device)
    attention, rope = both.attention, both.rope
    if not fits(context.block_size, attention):
        raise ValueError(f"no kernel attends over blocks of {context.block_size} tokens")
    caches = pointed(context.keys[attention.cache]), pointed(context.values[attention.cache])
    norms = tuple(context.gain(name, wide=rope.wide) for name in op.weights)

    def kernel(plan: RopeAttentionPlan, qkv: Tensor) -> Tensor:
        qkv = qkv.contiguous()
        out = torch.empty((len(qkv), attention.heads * attention.width), dtype=qkv.dtype, device=qkv.device)
        turn = Turn(plan.cosine, plan.sine, plan.places, norms, rope.eps)
        decode(attention, tuned, plan.decode, qkv, caches, out, turn=turn)
        return out

    return kernel
