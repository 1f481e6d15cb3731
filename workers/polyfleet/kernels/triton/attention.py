"""Paged attention of a step: its one-row sequences by one launch, those with several rows by another.

Caches whose blocks are no power of two, or smaller than 16, and what is not causal are left to torch's implementation.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polyfleet.graph.ops import Attention, Op, of
from polyfleet.kernels.cached import pointed
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.dispatch import Kernel
from polyfleet.kernels.step import Step
from polyfleet.kernels.torch import batched
from polyfleet.kernels.triton.decode import DecodePlan, decode, plan_decode
from polyfleet.kernels.triton.prefill import PrefillPlan, plan_prefill, prefill, single_lengths
from polyfleet.kernels.triton.tuning import tuning

try:
    from polyfleet.kernels.triton import hopper
except ImportError:  # a Triton without Gluon, or with another
    hopper = None  # type: ignore[assignment]

SMALLEST_BLOCK = 16
LIKELY = 8  # sequences that a mixed step has room for, by one that it has


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """What layers share."""

    decode: DecodePlan | None
    prefill: PrefillPlan | None


def fits(block_size: int, attention: Attention) -> bool:
    """Whether the kernels read blocks of so many positions, and attend as is wanted."""
    return attention.causal and block_size >= SMALLEST_BLOCK and block_size & (block_size - 1) == 0


def plan_attention(context: KernelContext, step: Step, attention: Any) -> Any:
    """Nothing in it depends on the lengths of one-row sequences, nor, where a step has `prompts`, on which those are:
    then all sequences decode, those with several rows nothing at all, which prompts' attention overwrites."""
    if not fits(context.block_size, attention):
        return batched.plan_attention(context, step, attention)
    tuned = tuning(context.device)
    if step.prompts is not None:
        rows = step.num_sequences - 1
        many = plan_decode(attention, step.tables, single_lengths(step), rows, tuned, max(1, rows // LIKELY))
        return AttentionPlan(many, plan_prefill(step, tuned.prefill, tuned.short_prefill))
    single = step.num_single
    decodes = plan_decode(attention, step.tables, step.lengths, single, tuned) if single else None
    by_hopper = tuned.hopper if _by_hopper(context, attention) else None
    launches = (by_hopper, by_hopper) if by_hopper else (tuned.prefill, tuned.short_prefill)
    return AttentionPlan(decodes, plan_prefill(step, *launches) if single < step.num_sequences else None)


def _by_hopper(context: KernelContext, attention: Attention, *, sinks: bool = False) -> bool:
    return (
        tuning(context.device).hopper is not None
        and hopper is not None
        and hopper.fits(attention, context, sinks=sinks)
    )


def bind_attention(op: Op, context: KernelContext) -> Kernel:
    """q -> y."""
    attention, tuned = of(op, Attention), tuning(context.device)
    if not fits(context.block_size, attention):
        return batched.bind_attention(op, context)
    caches = pointed(context.keys[attention.cache]), pointed(context.values[attention.cache])
    sinks = context.wide(*op.weights) if op.weights else None
    tiled = tuple(map(hopper.described, caches)) if _by_hopper(context, attention, sinks=bool(op.weights)) else ()

    def kernel(plan: AttentionPlan, q: Tensor) -> Tensor:
        q = q.contiguous()
        out = torch.empty_like(q)
        if plan.decode is not None:
            decode(attention, tuned, plan.decode, q, caches, out, sinks=sinks)
        if plan.prefill is not None and tiled and plan.prefill.step.prompts is None:  # it takes no tile without rows
            hopper.hopper_prefill(attention, plan.prefill, q, tiled, out)
        elif plan.prefill is not None:
            prefill(attention, plan.prefill, q, caches, out, sinks)
        return out

    return kernel
