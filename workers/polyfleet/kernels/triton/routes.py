# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
"""Which experts a row goes to, in one launch."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polyfleet.graph.ops import Op, Route, of
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.dispatch import Kernel
from polyfleet.kernels.step import Step

LOW = tl.constexpr(-1e30)  # what no number counts as, where the best are looked for


@triton.jit
def first_best(choice, number):
    """The number, lowest of equals, of the best choice of all."""
    best = tl.max(tl.max(choice, 1), 0)
    return tl.min(tl.min(tl.where(choice == best, number, 2**30), 1), 0)


@triton.jit
def route_kernel(
    logits, correction, shares, scale,
    EXPERTS: tl.constexpr, GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr, GROUP_BEST: tl.constexpr,
    TOP_K: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, SIGMOID: tl.constexpr,
    RENORMALISE: tl.constexpr, CORRECTED: tl.constexpr,
):  # fmt: skip
    """One row: its experts lie by groups, [HEIGHT, WIDTH]."""
    SIZE: tl.constexpr = EXPERTS // GROUPS
    row = tl.program_id(0).to(tl.int64)
    group, member = tl.arange(0, HEIGHT)[:, None], tl.arange(0, WIDTH)[None, :]
    expert = group * SIZE + member
    inside = (group < GROUPS) & (member < SIZE)
    wide = tl.load(logits + row * EXPERTS + expert, mask=inside, other=float("-inf")).to(tl.float32)
    if SIGMOID:
        scores = 1.0 / (1.0 + tl.exp(-wide))
    else:
        masses = tl.exp(wide - tl.max(tl.max(wide, 1), 0))
        scores = masses / tl.sum(tl.sum(masses, 1), 0)
    choice = scores
    if CORRECTED:
        choice += tl.load(correction + expert, mask=inside, other=0.0)
    choice = tl.where(choice > LOW, choice, LOW)  # what is no number too
    choice = tl.where(inside, choice, float("-inf"))
    if TOP_GROUPS < GROUPS:
        left, worth = choice, tl.zeros([HEIGHT, 1], tl.float32)
        for _ in tl.static_range(GROUP_BEST):
            best = tl.max(left, 1)[:, None]
            worth += best
            at = tl.min(tl.where(left == best, member, WIDTH), 1)[:, None]
            left = tl.where(member == at, float("-inf"), left)
        worth = tl.where(group < GROUPS, worth, float("-inf"))
        kept = group < 0
        for _ in tl.static_range(TOP_GROUPS):
            at = first_best(worth, group)
            kept = kept | (group == at)
            worth = tl.where(group == at, float("-inf"), worth)
        choice = tl.where(kept, choice, float("-inf"))
    chosen = expert < 0
    for _ in tl.static_range(TOP_K):
        at = first_best(choice, tl.where(inside, expert, 2**30))
        chosen = chosen | ((expert == at) & inside)
        choice = tl.where(expert == at, float("-inf"), choice)
    taken = tl.where(chosen, scores, 0.0)
    if RENORMALISE:
        taken = taken / (tl.sum(tl.sum(taken, 1), 0) + 1e-20)
    tl.store(shares + row * EXPERTS + expert, tl.where(chosen, taken * scale, 0.0), mask=inside)


def bind_route(op: Op, context: KernelContext) -> Kernel:
    """logits -> shares."""
    route = of(op, Route)
    correction = context.wide(*op.weights) if op.weights else None
    height, width = (triton.next_power_of_2(each) for each in (route.groups, route.experts // route.groups))
    groups = route.groups, route.top_groups, route.group_best
    how = route.sigmoid, route.renormalise, correction is not None

    def kernel(step: Step, logits: Tensor) -> Tensor:
        logits = logits.contiguous()
        shares = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
        operands = logits, correction, shares, route.scale
        route_kernel[(len(logits),)](*operands, route.experts, *groups, route.top_k, height, width, *how, num_warps=1)
        return shares

    return kernel
