"""Mixtures of experts in torch, on any device: which experts a row goes to, and these, one after the other.

T rows, E experts, F columns inside an expert, H outside.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from polyfleet.graph.ops import Experts, Op, OpKind, Route, of
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.dispatch import Implementation, Kernel
from polyfleet.kernels.step import Step

STEEPNESS = 1.702  # of the gate that experts with a limit have
TINY = 1e-20  # keeps shares finite where all of them are 0


def route(logits: Tensor, attributes: Route, correction: Tensor | None = None) -> Tensor:
    """Shares [T, E] of logits [T, E], in float32."""
    wide = logits.float()
    scores = wide.sigmoid() if attributes.sigmoid else wide.softmax(-1)
    choice = scores if correction is None else scores + correction
    if attributes.top_groups < attributes.groups:
        grouped = choice.view(len(choice), attributes.groups, choice.shape[1] // attributes.groups)
        worth = grouped.topk(attributes.group_best, -1).values.sum(-1)
        out = torch.ones_like(worth, dtype=torch.bool).scatter_(1, worth.topk(attributes.top_groups, -1).indices, False)
        choice = grouped.masked_fill(out.unsqueeze(-1), float("-inf")).flatten(1)
    chosen = choice.topk(attributes.top_k, -1).indices
    shares = scores.gather(1, chosen)
    if attributes.renormalise:
        shares = shares / (shares.sum(-1, keepdim=True) + TINY)
    return torch.zeros_like(scores).scatter_(1, chosen, shares * attributes.scale)


def gated(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    """silu(gate) * up, or the limited form of it, as `Experts` says."""
    if not limit:
        return F.silu(gate) * up
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(STEEPNESS * gate) * (up + 1)


def squared(inner: Tensor) -> Tensor:
    """What experts without gates make of their rows: the square of what is over 0."""
    return inner.relu().square()


def bind_route(op: Op, context: KernelContext) -> Kernel:
    """logits -> shares."""
    attributes = of(op, Route)
    correction = context.wide(*op.weights) if op.weights else None
    return lambda step, logits: route(logits, attributes, correction)


def bind_experts(op: Op, context: KernelContext) -> Kernel:
    """x, shares -> y. Each expert that some row goes to computes these rows: which they are the host has to ask."""
    attributes = of(op, Experts)
    stacks = [context.dense(name).view(attributes.count, -1, context.weights[name].columns) for name in op.weights]
    biases = [context.vector(name).view(attributes.count, -1) for name in op.biases]
    pairs = list(zip(stacks, biases or stacks, strict=True))

    def kernel(step: Step, x: Tensor, shares: Tensor) -> Tensor:
        out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        taken = shares != 0
        for expert in taken.any(0).nonzero().flatten().tolist():
            rows = taken[:, expert].nonzero().flatten()
            *enter, down = ((stack[expert], bias[expert] if biases else None) for stack, bias in pairs)
            share = shares[rows, expert].unsqueeze(1)
            entered = [F.linear(x.index_select(0, rows), *each) for each in enter]
            if attributes.early:
                entered = [(each * share).to(x.dtype) for each in entered]
            inner = gated(entered[0], entered[-1], attributes.limit) if len(entered) == 2 else squared(entered[0])
            part = F.linear(inner, *down).float()
            out.index_add_(0, rows, part if attributes.early else part * share)
        return out.to(x.dtype)

    return kernel


EXPERTS = (
    Implementation(OpKind.ROUTE, "reference", bind_route, capturable=True),
    Implementation(OpKind.EXPERTS, "reference", bind_experts),
)
