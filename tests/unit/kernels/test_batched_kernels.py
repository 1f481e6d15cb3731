"""Every faster torch implementation against the reference in float32, over dtypes, shapes and mixtures of slices."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.support.kernel_cases import Shape, attention_over, make_context, make_step, rope_into

from polyfleet.graph.ops import Norm, Op, OpKind
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.dispatch import Implementation
from polyfleet.kernels.step import Step
from polyfleet.kernels.torch import batched
from polyfleet.kernels.torch.batched import BATCHED
from polyfleet.kernels.torch.reference import REFERENCE

REFERENCES = {each.op: each for each in REFERENCE}
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 5e-3}

MIXTURES = [
    [(1, 0)],
    [(1, 5)],
    [(1, 5), (1, 0), (1, 17), (1, 7)],
    [(6, 0)],
    [(5, 3)],
    [(9, 0), (4, 9)],
    [(1, 11), (1, 3), (7, 0), (1, 30), (3, 14), (2, 0)],
]


SHAPES = [Shape(6, 2, 8, 4), Shape(4, 4, 16, 1), Shape(8, 1, 6, 3)]


def run(implementation: Implementation, op: Op, context: KernelContext, step: Step, *inputs: Any) -> Any:
    return implementation.bind(op, context)(implementation.plan(context, step, op.attributes), *inputs)


def of(op: OpKind) -> Implementation:
    return next(each for each in BATCHED if each.op is op)


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = TOLERANCE[found.dtype]
    torch.testing.assert_close(found.float(), expected.float(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("parts", MIXTURES)
def test_attention(parts: Sequence[tuple[int, int]], shape: Shape) -> None:
    check_attention(parts, shape, torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_attention_in_halves(dtype: torch.dtype) -> None:
    check_attention(MIXTURES[-1], SHAPES[0], dtype)


def check_attention(parts: Sequence[tuple[int, int]], shape: Shape, dtype: torch.dtype) -> None:
    context = shape.context(dtype)
    step = make_step([(rows, start // 4 * shape.block_size) for rows, start in parts], shape.block_size)
    q = torch.randn(len(step.positions), shape.heads * shape.head_dim).to(dtype)
    over = attention_over(1, shape.heads, shape.kv_heads, shape.head_dim)
    op = Op(OpKind.PAGED_ATTENTION, (1,), (2,), attributes=over)
    expected = run(REFERENCES[op.kind], op, context, step, q)
    assert_close(run(of(op.kind), op, context, step, q), expected)


@pytest.mark.parametrize(
    "attributes", [{"window": 4}, {"soft_cap": 1.5}, {"sinks": True}, {"window": 7, "sinks": True}]
)
def test_attention_with_attributes(attributes: dict[str, Any]) -> None:
    """In a mixture of prompts, chunks and single rows."""
    context = make_context(weights={"sinks": torch.randn(6)})
    step = make_step(MIXTURES[-1])
    q = torch.randn(len(step.positions), 48)
    over, weights = replace(attention_over(1), **attributes), ("sinks",) if "sinks" in attributes else ()
    op = Op(OpKind.PAGED_ATTENTION, (1,), (2,), weights, attributes=over)
    expected = run(REFERENCES[op.kind], op, context, step, q)
    assert_close(run(of(op.kind), op, context, step, q), expected)
    plain = Op(OpKind.PAGED_ATTENTION, (1,), (2,), attributes=attention_over(1))
    assert (expected - run(REFERENCES[op.kind], plain, context, step, q)).abs().max() > 0.05


def test_attention_with_tables_of_very_different_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched, "SMALL_TABLE", 2)
    context, step = make_context(), make_step([(1, 2), (1, 90), (1, 9), (1, 14), (3, 5), (1, 45)])
    assert len(batched.plan_attention(context, step, attention_over()).decodes) > 2
    q = torch.randn(8, 48)
    op = Op(OpKind.PAGED_ATTENTION, (1,), (2,), attributes=attention_over())
    assert_close(run(of(op.kind), op, context, step, q), run(REFERENCES[op.kind], op, context, step, q))


def test_attention_over_a_group_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched, "GATHERED_BYTES", 2 * 5 * 256)
    context, step = make_context(), make_step([(1, 2), (1, 19), (1, 9), (1, 14), (3, 5)])
    assert len(batched.plan_attention(context, step, attention_over()).decodes) == 2
    q = torch.randn(7, 48)
    op = Op(OpKind.PAGED_ATTENTION, (1,), (2,), attributes=attention_over())
    assert_close(run(of(op.kind), op, context, step, q), run(REFERENCES[op.kind], op, context, step, q))


def test_attention_of_a_batch_never_reads_anothers_blocks() -> None:
    """NaN in every block that no sequence owns, and behind every end, changes nothing for the owners of others."""
    context, step = make_context(), make_step([(1, 3), (1, 18), (1, 7)])
    q = torch.randn(3, 48)
    op = Op(OpKind.PAGED_ATTENTION, (1,), (2,), attributes=attention_over())
    expected = run(of(op.kind), op, context, step, q)
    owned = set(step.tables.flatten().tolist())
    foreign = [block for block in range(len(context.keys[0])) if block not in owned]
    for cache in (*context.keys, *context.values):
        cache[foreign] = float("nan")
    assert torch.equal(run(of(op.kind), op, context, step, q), expected)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("shape", SHAPES)
def test_rope_and_cache(shape: Shape, dtype: torch.dtype) -> None:
    step = make_step([(1, 11), (5, 0), (3, 40)], shape.block_size)
    qkv = torch.randn(9, (shape.heads + 2 * shape.kv_heads) * shape.head_dim).to(dtype)
    into = rope_into(1, shape.heads, shape.kv_heads, shape.head_dim)
    op = Op(OpKind.ROPE_CACHE, (1,), (2,), attributes=into)
    contexts = shape.context(dtype), shape.context(dtype)
    found = run(of(op.kind), op, contexts[0], step, qkv)
    expected = run(REFERENCES[op.kind], op, contexts[1], step, qkv)
    assert_close(found, expected)
    for mine, theirs in zip(contexts[0].keys, contexts[1].keys, strict=True):
        assert_close(mine, theirs)
    for mine, theirs in zip(contexts[0].values, contexts[1].values, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_norms(rows: int, dtype: torch.dtype) -> None:
    context = make_context(dtype, weights={"n": 1 + 0.3 * torch.randn(48)})
    x, residual = torch.randn(rows, 48).to(dtype), 3 * torch.randn(rows, 48).to(dtype)
    step = make_step([(1, 0)])
    op = Op(OpKind.RMS_NORM, (1,), (2,), ("n",), attributes=Norm(1e-5))
    assert_close(run(of(op.kind), op, context, step, x), run(REFERENCES[op.kind], op, context, step, x))
    op = Op(OpKind.ADD_RMS_NORM, (1, 2), (3, 4), ("n",), attributes=Norm(1e-5))
    found, expected = (
        run(each[op.kind], op, context, step, x, residual) for each in ({op.kind: of(op.kind)}, REFERENCES)
    )
    assert_close(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("rows", [1, 5])
def test_linear_and_activation(rows: int, dtype: torch.dtype) -> None:
    weights = {name: torch.randn(shape) for name, shape in {"w": (24, 48), "u": (8, 48), "b": (24,), "c": (8,)}.items()}
    context, step, x = make_context(dtype, weights=weights), make_step([(1, 0)]), torch.randn(rows, 48).to(dtype)
    for biases in ((), ("b", "c")):
        op = Op(OpKind.LINEAR, (1,), (2,), ("w", "u"), biases)
        expected = run(REFERENCES[op.kind], op, context, step, x)
        torch.testing.assert_close(run(of(op.kind), op, context, step, x), expected)
    op, before = Op(OpKind.SILU_MUL, (1,), (2,)), x.clone()
    torch.testing.assert_close(run(of(op.kind), op, context, step, x), run(REFERENCES[op.kind], op, context, step, x))
    assert torch.equal(x, before)
