# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
"""Ops with recurrent state for sequences with one row each: a launch for all, which changes their states in place.

Sequences with several rows are left to torch's implementation. Rows without a slot read nothing and leave nothing.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polyfleet.graph.ops import Convolution, DeltaRule, Op, StateSpace, of
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.dispatch import Kernel
from polyfleet.kernels.step import Step
from polyfleet.kernels.torch import recurrent

COLUMNS = 256  # of a convolution's program
STATE = 4096  # numbers of a state that a program has at most, or one column of it


@triton.jit
def conv_kernel(
    x, weight, bias, state, slots, lengths, out,
    WIDTH: tl.constexpr, TAPS: tl.constexpr, BIASED: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One row, COLUMNS of its WIDTH; a state is [TAPS - 1, WIDTH], the oldest row first."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < WIDTH
    slot = tl.load(slots + row).to(tl.int64)
    known = inside & (slot >= 0) & (tl.load(lengths + row) > 1)
    kept = inside & (slot >= 0)
    value = tl.load(x + row * WIDTH + column, mask=inside, other=0.0)
    wide = value.to(tl.float32)
    total = wide * tl.load(weight + column * TAPS + TAPS - 1, mask=inside, other=0.0)
    if BIASED:
        total += tl.load(bias + column, mask=inside, other=0.0)
    for tap in tl.static_range(TAPS - 1):
        line = state + (slot * (TAPS - 1) + tap) * WIDTH + column
        past = tl.load(line, mask=known, other=0.0)
        total += past * tl.load(weight + column * TAPS + tap, mask=inside, other=0.0)
        if tap > 0:
            tl.store(line - WIDTH, past, mask=kept)
    tl.store(state + (slot * (TAPS - 1) + TAPS - 2) * WIDTH + column, wide, mask=kept)
    tl.store(out + row * WIDTH + column, total.to(value.dtype), mask=inside)


@triton.jit
def softplus(x):
    """log(1 + e^x), for large numbers too."""
    return tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def delta_kernel(
    qkv, gates, rates, shifts, state, slots, lengths, out,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr, PADDED: tl.constexpr,
    BLOCK: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    """Of one row and one head of values, BLOCK of its VALUES columns; a state is [KEYS, VALUES]."""
    head, row = tl.program_id(1), tl.program_id(2).to(tl.int64)
    key = tl.arange(0, PADDED)[:, None]
    value = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    slot = tl.load(slots + row).to(tl.int64)
    real = (key < KEYS) & (value < VALUES)
    place = state + ((slot * HEADS + head) * KEYS + key) * VALUES + value
    known = real & (slot >= 0) & (tl.load(lengths + row) > 1)
    held = tl.load(place, mask=known, other=0.0)
    line = qkv + row * (2 * KEY_HEADS * KEYS + HEADS * VALUES)
    mine = line + (head % KEY_HEADS if TURNS else head // (HEADS // KEY_HEADS)) * KEYS + key
    q = tl.load(mine, mask=key < KEYS, other=0.0).to(tl.float32)
    k = tl.load(mine + KEY_HEADS * KEYS, mask=key < KEYS, other=0.0).to(tl.float32)
    v = tl.load(line + 2 * KEY_HEADS * KEYS + head * VALUES + value, mask=value < VALUES, other=0.0).to(tl.float32)
    q = q * tl.rsqrt(tl.sum(q * q, 0)[None, :] + 1e-6) * (1.0 / tl.sqrt(KEYS * 1.0))
    k = k * tl.rsqrt(tl.sum(k * k, 0)[None, :] + 1e-6)
    rate = tl.load(gates + row * 2 * HEADS + head).to(tl.float32)
    fade = tl.load(gates + row * 2 * HEADS + HEADS + head).to(tl.float32) + tl.load(shifts + head)
    held = held * tl.exp(-tl.exp(tl.load(rates + head)) * softplus(fade))
    change = (v - tl.sum(held * k, 0)[None, :]) * (1.0 / (1.0 + tl.exp(-rate)))
    held += k * change
    tl.store(place, held, mask=real & (slot >= 0))
    found = tl.sum(held * q, 0)[None, :]
    tl.store(out + (row * HEADS + head) * VALUES + value, found.to(out.dtype.element_ty), mask=value < VALUES)


@triton.jit
def scan_kernel(
    xbc, steps, rates, shifts, skips, state, slots, lengths, out,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr, PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Mamba 2's recurrence, in the parts of `delta_kernel`."""
    head, row = tl.program_id(1), tl.program_id(2).to(tl.int64)
    key = tl.arange(0, PADDED)[:, None]
    value = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    slot = tl.load(slots + row).to(tl.int64)
    real = (key < KEYS) & (value < VALUES)
    place = state + ((slot * HEADS + head) * KEYS + key) * VALUES + value
    known = real & (slot >= 0) & (tl.load(lengths + row) > 1)
    held = tl.load(place, mask=known, other=0.0)
    line = xbc + row * (2 * KEY_HEADS * KEYS + HEADS * VALUES)
    mine = line + HEADS * VALUES + head // (HEADS // KEY_HEADS) * KEYS + key
    b = tl.load(mine, mask=key < KEYS, other=0.0).to(tl.float32)
    c = tl.load(mine + KEY_HEADS * KEYS, mask=key < KEYS, other=0.0).to(tl.float32)
    x = tl.load(line + head * VALUES + value, mask=value < VALUES, other=0.0).to(tl.float32)
    step = softplus(tl.load(steps + row * HEADS + head).to(tl.float32) + tl.load(shifts + head))
    held = held * tl.exp(-tl.exp(tl.load(rates + head)) * step) + b * (step * x)
    tl.store(place, held, mask=real & (slot >= 0))
    found = tl.sum(held * c, 0)[None, :] + tl.load(skips + head) * x
    tl.store(out + (row * HEADS + head) * VALUES + value, found.to(out.dtype.element_ty), mask=value < VALUES)


def bind_causal_conv(op: Op, context: KernelContext) -> Kernel:
    """x -> y."""
    attributes = of(op, Convolution)
    others = recurrent.bind_causal_conv(op, context, single=False)
    weight, state = context.wide(*op.weights), context.states[attributes.state]
    bias = context.wide(*op.biases) if op.biases else weight

    def kernel(step: Step, x: Tensor) -> Tensor:
        x, single = x.contiguous(), step.num_single
        out = torch.empty_like(x) if single == step.num_sequences else others(step, x)
        if single:
            operands = x, weight, bias, state, step.slots, step.lengths, out
            grid = single, triton.cdiv(x.shape[1], COLUMNS)
            conv_kernel[grid](*operands, x.shape[1], attributes.taps, bool(op.biases), COLUMNS, num_warps=2)
        return out

    return kernel


def bind_delta_rule(op: Op, context: KernelContext) -> Kernel:
    """qkv, gates -> y."""
    rule = of(op, DeltaRule)
    others = recurrent.bind_delta_rule(op, context, single=False)
    (rates, shifts), state = (context.wide(name) for name in op.weights), context.states[rule.state]
    padded = triton.next_power_of_2(rule.key_width)
    block = max(1, min(triton.next_power_of_2(rule.value_width), STATE // padded))
    shape = rule.key_heads, rule.value_heads, rule.key_width, rule.value_width, padded, block, rule.turns

    def kernel(step: Step, qkv: Tensor, gates: Tensor) -> Tensor:
        qkv, gates, single = qkv.contiguous(), gates.contiguous(), step.num_single
        width = rule.value_heads * rule.value_width
        alone = single == step.num_sequences
        out = qkv.new_empty((len(qkv), width)) if alone else others(step, qkv, gates)
        if single:
            operands = qkv, gates, rates, shifts, state, step.slots, step.lengths, out
            delta_kernel[(triton.cdiv(rule.value_width, block), rule.value_heads, single)](*operands, *shape)
        return out

    return kernel


def bind_ssm_scan(op: Op, context: KernelContext) -> Kernel:
    """xbc, steps -> y."""
    space = of(op, StateSpace)
    others = recurrent.bind_ssm_scan(op, context, single=False)
    weights, state = [context.wide(name) for name in op.weights], context.states[space.state]
    padded = triton.next_power_of_2(space.key_width)
    block = max(1, min(triton.next_power_of_2(space.value_width), STATE // padded))
    shape = space.key_heads, space.value_heads, space.key_width, space.value_width, padded, block

    def kernel(step: Step, xbc: Tensor, steps: Tensor) -> Tensor:
        xbc, steps, single = xbc.contiguous(), steps.contiguous(), step.num_single
        alone = single == step.num_sequences
        out = xbc.new_empty((len(xbc), space.value_heads * space.value_width)) if alone else others(step, xbc, steps)
        if single:
            operands = xbc, steps, *weights, state, step.slots, step.lengths, out
            scan_kernel[(triton.cdiv(space.value_width, block), space.value_heads, single)](*operands, *shape)
        return out

    return kernel
