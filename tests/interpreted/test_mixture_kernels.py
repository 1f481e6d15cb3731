"""Kernels of mixtures, latent caches and states against the reference, on fresh random inputs and poisoned outputs."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.interpreted.test_kernels import KERNELS, REFERENCES, assert_close, fresh_numbers, poisoned_outputs, run
from tests.support.kernel_cases import NUM_BLOCKS, make_context, make_step

from polyfleet.graph.ops import Attention, CacheWrite, Convolution, DeltaRule, Experts, Op, OpKind, Route, StateSpace
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.step import Step
from polyfleet.kernels.triton.experts import bind_experts
from polyfleet.kernels.triton.tuning import Launch, tuning

__all__ = ["fresh_numbers", "poisoned_outputs"]  # fixtures
FLOATS = [torch.float32, torch.float16]
ROUTES = {
    "Mixtral's": Route(8, 2),
    "scores as they are": Route(60, 4, renormalise=False),
    "one of one": Route(1, 1, sigmoid=True, renormalise=False),
    "DeepSeek V2's": Route(24, 3, renormalise=False, scale=16.0, groups=4, top_groups=2),
    "DeepSeek V3's": Route(20, 4, sigmoid=True, scale=2.5, groups=5, top_groups=2, group_best=2),
    "all": Route(4, 4),
}


def padded(step: Step, at: int) -> Step:
    """The step with one row that is padding."""
    places, lengths, slots = step.places.clone(), step.lengths.clone(), step.slots.clone()
    places[at], lengths[at], slots[at] = -1, 0, -1
    return replace(step, places=places, lengths=lengths, slots=slots)


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("name", ROUTES)
def test_routes(name: str, corrected: bool) -> None:
    route = ROUTES[name]
    context = make_context(weights={"c": 0.3 * torch.randn(1, route.experts)})
    op = Op(OpKind.ROUTE, (1,), (2,), ("c",) * corrected, attributes=route)
    logits, step = torch.randn(9, route.experts), make_step([(9, 0)])
    assert_close(run(KERNELS, op, context, step, logits), run(REFERENCES, op, context, step, logits))


def test_a_row_that_is_no_number_has_no_more_experts_than_others() -> None:
    op = Op(OpKind.ROUTE, (1,), (2,), attributes=Route(8, 2, groups=4, top_groups=2, group_best=2))
    logits = torch.randn(3, 8)
    logits[1, 5] = torch.nan
    shares = run(KERNELS, op, make_context(), make_step([(3, 0)]), logits)
    assert int((shares != 0).sum(1).max()) == 2
    assert shares[1].isnan().sum() == 2
    assert shares[[0, 2]].isfinite().all()


def mixture(
    count: int, hidden: int, inner: int, dtype: torch.dtype, biased: bool, gated: bool = True, early: bool = False
) -> tuple[KernelContext, Op]:
    shapes = {**({"gate": (inner, hidden)} if gated else {}), "up": (inner, hidden), "down": (hidden, inner)}
    held = {name: torch.randn(count * rows, columns) / columns**0.5 for name, (rows, columns) in shapes.items()}
    biases = {f"{name}.bias": torch.randn(1, count * shape[0]) for name, shape in shapes.items()}
    attributes = Experts(count, min(3, count), 1.5 * (biased and gated), early)
    names = tuple(biases) if biased else ()
    return make_context(dtype, weights=held | biases), Op(OpKind.EXPERTS, (1, 2), (3,), tuple(held), names, attributes)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("rows", "count", "hidden", "inner", "biased", "gated"),
    [
        (1, 8, 128, 96, False, True),
        (7, 5, 72, 40, True, True),
        (50, 6, 64, 48, False, True),
        (150, 2, 32, 16, True, True),
        (4, 1, 48, 32, False, True),
        (7, 5, 72, 40, False, False),
        (4, 1, 48, 32, True, False),
    ],
)
def test_experts(rows: int, count: int, hidden: int, inner: int, biased: bool, gated: bool, dtype: torch.dtype) -> None:
    """Some rows have fewer experts than others, one of them none, and some experts no row."""
    context, op = mixture(count, hidden, inner, dtype, biased, gated, early=rows == 50)
    x, shares = torch.randn(rows, hidden).to(dtype), torch.zeros(rows, count)
    for row in range(rows):
        chosen = torch.randperm(max(1, count - 1))[: torch.randint(1, min(3, count) + 1, ())]
        shares[row, chosen] = torch.rand(len(chosen)) + 0.1
    shares[rows // 2] *= float(rows == 1)
    step = make_step([(rows, 0)])
    assert_close(run(KERNELS, op, context, step, x, shares), run(REFERENCES, op, context, step, x, shares))


def test_padding_has_no_expert() -> None:
    context, op = mixture(4, 32, 16, torch.float32, True)
    x, shares = torch.randn(3, 32), torch.rand(3, 4)
    shares[:, 1] = 0
    step = make_step([(1, 0), (1, 3), (1, 5)])
    expected = run(REFERENCES, op, context, step, x, shares)
    found = bind_experts(op, context)(padded(step, 1), x, shares)
    assert_close(found[[0, 2]], expected[[0, 2]])
    assert not found[1].any()


RULE = DeltaRule(1, key_heads=2, value_heads=4, key_width=12, value_width=24)
SPACE = StateSpace(1, key_heads=2, value_heads=4, key_width=12, value_width=24)
COLUMNS = 2 * 2 * 12 + 4 * 24
CONV = Convolution(0, taps=4)


RULES = {
    "delta": Op(OpKind.DELTA_RULE, (1, 2), (3,), ("a", "b"), attributes=RULE),
    "delta, turns": Op(OpKind.DELTA_RULE, (1, 2), (3,), ("a", "b"), attributes=replace(RULE, turns=True)),
    "mamba 2": Op(OpKind.SSM_SCAN, (1, 2), (3,), ("a", "b", "d"), attributes=SPACE),
}


def states(rule: Op, biases: tuple[str, ...] = ()) -> tuple[KernelContext, Op, Op]:
    weights = {"w": torch.randn(1, COLUMNS * 4), "bias": torch.randn(1, COLUMNS)}
    weights |= {name: torch.randn(1, 4) for name in "abd"}
    conv = Op(OpKind.CAUSAL_CONV, (1,), (2,), ("w",), biases, CONV)
    held = [torch.full((5, width), float("nan")) for width in (3 * COLUMNS, 4 * 12 * 24)]
    return replace(make_context(weights=weights), states=held), conv, rule


@pytest.mark.parametrize("biases", [(), ("bias",)])
@pytest.mark.parametrize("name", RULES)
def test_states(name: str, biases: tuple[str, ...]) -> None:
    """Steps of prompts and of single rows, some first ones, in both implementations by turns."""
    contexts, gates = states(RULES[name], biases), 4 if name == "mamba 2" else 8
    other = replace(contexts[0], states=[each.clone() for each in contexts[0].states])
    for parts in ([(3, 0), (9, 0)], [(1, 3), (2, 9)], [(1, 0), (1, 11)], [(1, 1), (1, 0)]):
        step = make_step(parts)
        rows = len(step.positions)
        for op, inputs in ((contexts[1], [torch.randn(rows, COLUMNS)]), (contexts[2], [torch.randn(rows, COLUMNS)])):
            operands = inputs if op.kind is OpKind.CAUSAL_CONV else [*inputs, torch.randn(rows, gates)]
            assert_close(run(KERNELS, op, contexts[0], step, *operands), run(REFERENCES, op, other, step, *operands))
    for mine, theirs in zip(contexts[0].states, other.states, strict=True):
        assert_close(mine[:2], theirs[:2])
        assert mine[2:].isnan().all()


@pytest.mark.parametrize("name", RULES)
def test_padding_leaves_states_alone(name: str) -> None:
    context, conv, rule = states(RULES[name])
    step = padded(make_step([(1, 0), (1, 4)]), 1)
    run(KERNELS, conv, context, step, torch.randn(2, COLUMNS))
    run(KERNELS, rule, context, step, torch.randn(2, COLUMNS), torch.randn(2, 4 if name == "mamba 2" else 8))
    for state in context.states:
        assert state[0].isfinite().all()
        assert state[1:].isnan().all()


def latent_context(latent: int, rest: int, block_size: int, dtype: torch.dtype) -> KernelContext:
    cache = torch.randn(1, NUM_BLOCKS, 1, block_size, latent + rest).to(dtype)
    return replace(make_context(dtype), caches=[cache], block_size=block_size)


SINGLE, MIXED = [(1, 0), (1, 63), (1, 200)], [(1, 11), (1, 70), (14, 30), (3, 14)]
CASES: list[tuple[list[tuple[int, int]], int, int, int, int, torch.dtype]] = [
    (SINGLE, 20, 32, 16, 1, torch.float32),
    (SINGLE, 4, 48, 8, 200, torch.float16),
    (MIXED, 5, 48, 8, 20, torch.float32),
]


@pytest.mark.parametrize(("parts", "heads", "latent", "rest", "programs", "dtype"), CASES)
def test_latent_attention(
    parts: list[tuple[int, int]], heads: int, latent: int, rest: int, programs: int, dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Whatever no sequence owns is not finite."""
    tuned = replace(tuning(torch.device("cpu")), programs=programs, latent=Launch(16, 4, 1, 16))
    monkeypatch.setattr("polyfleet.kernels.triton.latent.tuning", lambda device: tuned)
    context, step = latent_context(latent, rest, 16, dtype), make_step(parts, 16)
    rows = len(step.positions)
    attention = Attention(0, heads, 1, latent + rest, 0.2, value_width=latent)
    op = Op(OpKind.LATENT_ATTENTION, (1, 2), (3,), attributes=attention)
    inputs = torch.randn(rows, heads * latent).to(dtype), torch.randn(rows, heads * rest).to(dtype)
    expected = run(REFERENCES, op, context, step, *inputs)
    owned = torch.zeros(NUM_BLOCKS, 16, dtype=torch.bool)
    for table, length in zip(step.tables, step.host_lengths.tolist(), strict=True):
        owned[table[torch.arange(length) // 16], torch.arange(length) % 16] = True
    context.keys[0][:, 0][~owned] = float("nan")
    kernel = KERNELS[op.kind]
    plan = kernel.plan(context, step, attention)
    for _ in range(2):  # as two layers do, over one plan
        assert_close(kernel.bind(op, context)(plan, *inputs), expected)
    assert not plan.arrived.any()


def test_latent_attention_of_padding_is_zero() -> None:
    context, step = latent_context(32, 16, 16, torch.float32), padded(make_step([(1, 5), (1, 9)], 16), 0)
    op = Op(OpKind.LATENT_ATTENTION, (1, 2), (3,), attributes=Attention(0, 4, 1, 48, 0.2, value_width=32))
    found = run(KERNELS, op, context, step, torch.randn(2, 128), torch.randn(2, 64))
    assert not found[0].any()
    assert found[1].isfinite().all()


@pytest.mark.parametrize("kind", [OpKind.CACHE_WRITE, OpKind.LATENT_WRITE])
def test_writes(kind: OpKind) -> None:
    """Rows without a place write nothing."""
    latent = kind is OpKind.LATENT_WRITE
    contexts: Any = [latent_context(24, 8, 4, torch.float32) if latent else make_context() for _ in range(2)]
    for each in contexts:
        each.caches[0].zero_()
    step, op = make_step([(1, 7), (5, 2)]), Op(kind, (1, 2), attributes=CacheWrite(0))
    inputs = torch.randn(6, 24 if latent else 16), torch.randn(6, 8 if latent else 16)
    run(KERNELS, op, contexts[0], padded(step, 0), *inputs)
    run(REFERENCES, op, contexts[1], step, *inputs)
    contexts[1].caches[0][:, step.blocks[0], :, step.offsets[0]] = 0
    assert contexts[0].caches[0].any()
    assert torch.equal(contexts[0].caches[0], contexts[1].caches[0])
