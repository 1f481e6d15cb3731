"""Ops with recurrent state against loops over single rows in float64."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tests.support.kernel_cases import make_context
from torch import Tensor

from polyfleet.graph.ops import Convolution, DeltaRule, Op, OpKind, StateSpace
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.dispatch import Kernel
from polyfleet.kernels.step import make_step
from polyfleet.kernels.torch.recurrent import CHUNK, RECURRENT

CPU, SLOTS = torch.device("cpu"), 4
BIND = {each.op: each.bind for each in RECURRENT}
SPACE = StateSpace(1, key_heads=2, value_heads=4, key_width=8, value_width=6)
RULE = DeltaRule(1, key_heads=2, value_heads=4, key_width=8, value_width=6)
CONV = Convolution(0, taps=4)
COLUMNS = 2 * 2 * 8 + 4 * 6
# Steps of (rows, first position) of each slot's sequence, those of one row first: prompts in parts, decodes, a new one.
STEPS = [[(3, 0), (CHUNK + 9, 0)], [(1, 3), (2 * CHUNK, CHUNK + 9)], [(1, 0), (1, 3 * CHUNK + 9)], [(1, 1), (5, 0)]]


@pytest.fixture
def context() -> KernelContext:
    """States hold nothing finite: whatever a first row reads there is its own."""
    torch.manual_seed(5)
    weights = {"w": torch.randn(1, COLUMNS * CONV.taps), "bias": torch.randn(1, COLUMNS)}
    weights |= {name: torch.randn(1, 4) for name in "abd"}
    states = [torch.full((SLOTS, width), float("nan")) for width in (3 * COLUMNS, 4 * 8 * 6)]
    return replace(make_context(weights=weights), states=states)


def convolved(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    padded = torch.cat((torch.zeros(CONV.taps - 1, x.shape[1]), x)).double()
    rows = [(padded[row : row + CONV.taps].T * weight.double()).sum(1) for row in range(len(x))]
    return torch.stack(rows) + bias.double()


def ruled(qkv: Tensor, gates: Tensor, a: Tensor, b: Tensor, *, turns: bool) -> Tensor:
    """Head by head and row by row, as ops.py has it."""
    out = torch.zeros(len(qkv), 4, 6, dtype=torch.float64)
    q, k, v = torch.split(qkv.double(), [16, 16, 24], dim=1)
    rates, fades = gates.double().chunk(2, dim=1)
    for head in range(4):
        state = torch.zeros(8, 6, dtype=torch.float64)
        for row in range(len(qkv)):
            key_head = head % 2 if turns else head // 2
            of_head = slice(key_head * 8, key_head * 8 + 8)
            key = k[row, of_head] / (k[row, of_head].square().sum() + 1e-6).sqrt()
            query = q[row, of_head] / (q[row, of_head].square().sum() + 1e-6).sqrt() / 8**0.5
            fade = torch.nn.functional.softplus(fades[row, head] + b[0, head])
            state = state * (-a[0, head].double().exp() * fade).exp()
            change = rates[row, head].sigmoid() * (v[row, head * 6 : head * 6 + 6] - state.T @ key)
            state = state + torch.outer(key, change)
            out[row, head] = state.T @ query
    return out.flatten(1)


def scanned(xbc: Tensor, steps: Tensor, a: Tensor, b: Tensor, d: Tensor) -> Tensor:
    """Mamba 2's recurrence head by head and row by row, as ops.py has it."""
    out = torch.zeros(len(xbc), 4, 6, dtype=torch.float64)
    x, keys, queries = torch.split(xbc.double(), [24, 16, 16], dim=1)
    for head in range(4):
        state = torch.zeros(8, 6, dtype=torch.float64)
        for row in range(len(xbc)):
            key, query = (each[row, head // 2 * 8 : head // 2 * 8 + 8] for each in (keys, queries))
            value = x[row, head * 6 : head * 6 + 6]
            step = torch.nn.functional.softplus(steps[row, head].double() + b[0, head])
            state = state * (-a[0, head].double().exp() * step).exp() + torch.outer(key, step * value)
            out[row, head] = state.T @ query + d[0, head] * value
    return out.flatten(1)


@pytest.mark.parametrize("turns", [False, True])
def test_sequences_come_to_the_same_however_their_rows_are_cut(context: KernelContext, turns: bool) -> None:
    rule = bind(Op(OpKind.DELTA_RULE, (1, 2), (3,), ("a", "b"), attributes=replace(RULE, turns=turns)), context)
    check(context, rule, 8, lambda x, gates, weights: ruled(x, gates, weights["a"], weights["b"], turns=turns))


def test_sequences_come_to_the_same_by_mamba_2s_recurrence(context: KernelContext) -> None:
    scan = bind(Op(OpKind.SSM_SCAN, (1, 2), (3,), ("a", "b", "d"), attributes=SPACE), context)
    check(context, scan, 4, lambda x, steps, weights: scanned(x, steps, *(weights[name] for name in "abd")))


def bind(op: Op, context: KernelContext) -> Kernel:
    return BIND[op.kind](op, context)


def check(context: KernelContext, rule: Kernel, width: int, expect: Callable[..., Tensor]) -> None:
    """The convolution and a rule with so many columns of gates, over all of STEPS."""
    conv = bind(Op(OpKind.CAUSAL_CONV, (1,), (2,), ("w",), ("bias",), CONV), context)
    weights = {name: weight.data for name, weight in context.weights.items()}
    known: dict[int, list[tuple[Tensor, Tensor]]] = {}
    for parts in STEPS:
        step = make_step([([0] * rows, first, range(64)) for rows, first in parts], 4, CPU)
        count = sum(rows for rows, _ in parts)
        x, gates = torch.randn(count, COLUMNS), torch.randn(count, width)
        found, at = (conv(step, x), rule(step, x, gates)), 0
        for slot, (rows, first) in enumerate(parts):
            mine = slice(at, at + rows)
            known[slot] = (known[slot] if first else []) + [(x[mine], gates[mine])]
            all_x, all_gates = (torch.cat(each) for each in zip(*known[slot], strict=True))
            expected = (
                convolved(all_x, weights["w"].view(-1, CONV.taps), weights["bias"]),
                expect(all_x, all_gates, weights),
            )
            for ours, theirs in zip(found, expected, strict=True):
                torch.testing.assert_close(ours[mine].double(), theirs[first:], atol=2e-5, rtol=2e-5)
            at += rows
