"""Ops with recurrent state in torch, on any device: a short convolution, the gated delta rule (Yang et al., arXiv
2412.06464) and Mamba 2's recurrence (Dao and Gu, arXiv 2405.21060). Each sequence's state lies in its slot, and counts
for nothing where its first token is computed.

T rows, C columns, K taps; V heads of values, A columns of a key, B of a value; a state [A, B] of each of V.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from polyfleet.graph.ops import Convolution, DeltaRule, Op, OpKind, StateSpace, of
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.dispatch import Implementation, Kernel
from polyfleet.kernels.step import Step

CHUNK = 64  # rows of a sequence whose delta rule is solved together
TINY = 1e-6  # keeps vectors of zeros finite where they are normalised


def runs(step: Step, *, alone: bool = True) -> Iterator[tuple[slice, slice, bool]]:
    """Rows, the sequences that have equally many of them each, and whether these begin: one-row sequences together,
    where those are wanted."""
    starts, lengths, single = step.host_row_starts.tolist(), step.host_lengths.tolist(), step.num_single
    if single and alone:
        yield slice(0, single), slice(0, single), False
    for number in range(single, step.num_sequences):
        first, end = starts[number : number + 2]
        yield slice(first, end), slice(number, number + 1), lengths[number] == end - first


def stored(state: Tensor, step: Step, sequences: slice, *, begins: bool) -> Tensor:
    """States [sequences, …] as they lie in their slots; zeros of sequences that begin."""
    slots = step.slots[sequences]
    if begins:
        return torch.zeros((len(slots), *state.shape[1:]), dtype=state.dtype, device=state.device)
    found = state.index_select(0, slots)
    if sequences.start:
        return found  # a later part of a prompt
    old = (step.lengths[sequences] > 1).view(-1, *[1] * (found.dim() - 1))
    return torch.where(old, found, 0)


def bind_causal_conv(op: Op, context: KernelContext, *, single: bool = True) -> Kernel:
    """x[T, C] -> y[T, C]; of sequences with one row only where it is for `single` ones too."""
    attributes = of(op, Convolution)
    taps = attributes.taps
    weight = context.wide(*op.weights).view(-1, taps)
    bias = context.wide(*op.biases) if op.biases else 0.0
    state = context.states[attributes.state].view(-1, taps - 1, len(weight))

    def kernel(step: Step, x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        for rows, sequences, begins in runs(step, alone=single):
            past = stored(state, step, sequences, begins=begins)
            seen = torch.cat((past, x[rows].float().view(len(past), -1, len(weight))), dim=1)
            out[rows] = ((seen.unfold(1, taps, 1) * weight).sum(-1) + bias).flatten(0, 1).to(x.dtype)
            state.index_copy_(0, step.slots[sequences], seen[:, 1 - taps :])
        return out

    return kernel


def advance(states: Tensor, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
    """One row of n sequences: states [n, V, A, B], q, k [n, V, A], v [n, V, B]; the logarithm of decay, rate [n, V].

    Gives [n, V, B] and the new states.
    """
    kept = states * decay.exp()[..., None, None]
    change = (v - torch.einsum("nhab,nha->nhb", kept, k)) * rate.unsqueeze(-1)
    states = kept + k.unsqueeze(-1) * change.unsqueeze(-2)
    return torch.einsum("nhab,nha->nhb", states, q), states


def advance_chunk(state: Tensor, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
    """Several rows of one sequence: state [V, A, B], q and k [V, T, A], v [V, T, B], decay and rate [V, T].

    Row t changes the state by k_t u_tᵀ with u_t = rate_t (v_t - decayed stateᵀ k_t): a triangular system for all u.
    """
    total = decay.cumsum(-1)  # from the state's time on
    later = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool, device=q.device).tril()
    between = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(~later, float("-inf")).exp()
    grown = total.exp().unsqueeze(-1)
    system = torch.tril(k @ k.mT * between * rate.unsqueeze(-1), -1)
    wanted = (v - grown * (k @ state)) * rate.unsqueeze(-1)
    change = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
    out = grown * (q @ state) + (q @ k.mT * between) @ change
    rest = (total[:, -1:] - total).exp().unsqueeze(-1)
    return out, state * grown[:, -1:] + (k * rest).mT @ change


def normalised(x: Tensor) -> Tensor:
    """Vectors of length 1."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + TINY)


def bind_delta_rule(op: Op, context: KernelContext, *, single: bool = True) -> Kernel:
    """qkv[T, .], gates[T, 2 V] -> y[T, V·B], in float32; of `single` rows as `bind_causal_conv`."""
    rule = of(op, DeltaRule)
    rates, bias = (context.wide(name) for name in op.weights)
    keys, values, group = rule.key_heads * rule.key_width, rule.value_heads * rule.value_width, rule.group
    state = context.states[rule.state].view(-1, rule.value_heads, rule.key_width, rule.value_width)

    def kernel(step: Step, qkv: Tensor, gates: Tensor) -> Tensor:
        q, k, v = torch.split(qkv.float(), [keys, keys, values], dim=1)
        q, k = (normalised(x.view(len(x), -1, rule.key_width)) for x in (q, k))
        q, k = (x.repeat(1, group, 1) if rule.turns else x.repeat_interleave(group, dim=1) for x in (q, k))
        q, v = q * rule.key_width**-0.5, v.view(len(v), -1, rule.value_width)
        rate, fading = gates.float().chunk(2, dim=1)
        decay, rate = -rates.exp() * F.softplus(fading + bias), rate.sigmoid()
        out = torch.empty_like(v)
        for rows, sequences, begins in runs(step, alone=single):
            before = stored(state, step, sequences, begins=begins)
            parts = [each[rows] for each in (q, k, v, decay, rate)]
            if len(before) == len(parts[0]):
                out[rows], after = advance(before, *parts)
            else:
                made, after = _advance_all(advance_chunk, before[0], [each.transpose(0, 1) for each in parts])
                out[rows] = made.transpose(0, 1)
            state.index_copy_(0, step.slots[sequences], after)
        return out.flatten(1).to(qkv.dtype)

    return kernel


def scan(states: Tensor, c: Tensor, b: Tensor, x: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    """As `advance`, without what the state holds being taken from what comes: c and b [n, V, A], x [n, V, B]."""
    states = states * decay.exp()[..., None, None] + b.unsqueeze(-1) * x.unsqueeze(-2)
    return torch.einsum("nhab,nha->nhb", states, c), states


def scan_chunk(state: Tensor, c: Tensor, b: Tensor, x: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    """As `advance_chunk`: c and b [V, T, A], x [V, T, B], decay [V, T]."""
    total = decay.cumsum(-1)
    later = torch.ones(c.shape[1], c.shape[1], dtype=torch.bool, device=c.device).tril()
    between = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(~later, float("-inf")).exp()
    grown = total.exp().unsqueeze(-1)
    rest = (total[:, -1:] - total).exp().unsqueeze(-1)
    return grown * (c @ state) + (c @ b.mT * between) @ x, state * grown[:, -1:] + (b * rest).mT @ x


def bind_ssm_scan(op: Op, context: KernelContext, *, single: bool = True) -> Kernel:
    """xbc[T, .], steps[T, V] -> y[T, V·B], in float32; of `single` rows as `bind_causal_conv`."""
    space = of(op, StateSpace)
    rates, bias, skip = (context.wide(name) for name in op.weights)
    values, keys = space.value_heads * space.value_width, space.key_heads * space.key_width
    state = context.states[space.state].view(-1, space.value_heads, space.key_width, space.value_width)

    def kernel(step: Step, xbc: Tensor, steps: Tensor) -> Tensor:
        x, b, c = torch.split(xbc.float(), [values, keys, keys], dim=1)
        b, c = (each.view(len(each), space.key_heads, -1) for each in (b, c))
        b, c = (each.repeat_interleave(space.group, dim=1) for each in (b, c))
        x, time = x.view(len(x), -1, space.value_width), F.softplus(steps.float() + bias)
        out = x * skip.unsqueeze(-1)
        each = c, b, x * time.unsqueeze(-1), -rates.exp() * time
        for rows, sequences, begins in runs(step, alone=single):
            before = stored(state, step, sequences, begins=begins)
            parts = [part[rows] for part in each]
            if len(before) == len(parts[0]):
                made, after = scan(before, *parts)
            else:
                made, after = _advance_all(scan_chunk, before[0], [part.transpose(0, 1) for part in parts])
                made = made.transpose(0, 1)
            out[rows] += made
            state.index_copy_(0, step.slots[sequences], after)
        return out.flatten(1).to(xbc.dtype)

    return kernel


def _advance_all(
    advance_one: Callable[..., tuple[Tensor, Tensor]], state: Tensor, parts: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """All rows of one sequence, chunk by chunk."""
    made = []
    for chunk in zip(*(torch.split(each, CHUNK, dim=1) for each in parts), strict=True):
        out, state = advance_one(state, *chunk)
        made.append(out)
    return torch.cat(made, dim=1), state.unsqueeze(0)


RECURRENT = (
    Implementation(OpKind.CAUSAL_CONV, "reference", bind_causal_conv),
    Implementation(OpKind.DELTA_RULE, "reference", bind_delta_rule),
    Implementation(OpKind.SSM_SCAN, "reference", bind_ssm_scan),
)
