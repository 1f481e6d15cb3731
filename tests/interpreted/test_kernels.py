"""Every Triton kernel against the reference in float32, on fresh random inputs, over shapes, mixtures and padding."""

import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.support.kernel_cases import Shape, attention_over, make_context, make_step, rope_into

from polyfleet.graph.ops import Norm, Op, OpKind
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.step import Step
from polyfleet.kernels.torch.reference import REFERENCE
from polyfleet.kernels.triton import TRITON
from polyfleet.kernels.triton import attention as triton_attention
from polyfleet.kernels.triton.tuning import tuning

REFERENCES = {each.op: each for each in REFERENCE}
KERNELS = {each.op: each for each in TRITON}
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3}

MIXTURES = [
    [(1, 0)],
    [(1, 200)],
    [(1, 63), (1, 0), (1, 64), (1, 17), (1, 130)],
    [(140, 0)],
    [(5, 133)],
    [(1, 11), (1, 100), (66, 64), (3, 14)],
]


SINKS = torch.tensor([-1.0, 3.0])
SHAPES = [Shape(3, 3, 64, 16), Shape(3, 1, 64, 64), Shape(8, 2, 80, 16), Shape(8, 1, 128, 32)]


@pytest.fixture(autouse=True)
def fresh_numbers() -> None:
    seed = int.from_bytes(os.urandom(4), "little")
    torch.manual_seed(seed)
    print("seed", seed)


@pytest.fixture(autouse=True)
def poisoned_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What kernels leave unwritten is not finite."""

    def poisoned(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def call(*args: Any, **options: Any) -> torch.Tensor:
            made = make(*args, **options)
            return made.fill_(float("nan")) if made.dtype.is_floating_point else made

        return call

    monkeypatch.setattr(torch, "empty", poisoned(torch.empty))
    monkeypatch.setattr(torch, "empty_like", poisoned(torch.empty_like))


def run(table: Any, op: Op, context: KernelContext, step: Step, *inputs: Any) -> Any:
    implementation = table[op.kind]
    return implementation.bind(op, context)(implementation.plan(context, step, op.attributes), *inputs)


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = TOLERANCE[found.dtype]
    torch.testing.assert_close(found.float(), expected.float(), atol=tolerance, rtol=tolerance)


def attention_op(shape: Shape, **attributes: Any) -> Op:
    over = replace(attention_over(1, shape.heads, shape.kv_heads, shape.head_dim), **attributes)
    return Op(OpKind.PAGED_ATTENTION, (1,), (2,), ("sinks",) * over.sinks, attributes=over)


CASES = [
    *((parts, shape, torch.float32) for parts, shape in zip(MIXTURES, itertools.cycle(SHAPES), strict=False)),
    *((MIXTURES[-1], shape, dtype) for shape in SHAPES for dtype in TOLERANCE),
]


@pytest.mark.parametrize(("parts", "shape", "dtype"), CASES)
def test_attention(parts: Sequence[tuple[int, int]], shape: Shape, dtype: torch.dtype) -> None:
    """Whatever no sequence of the step owns is not finite, and so is every entry of a table behind its sequence."""
    context, step = shape.context(dtype), make_step(parts, shape.block_size)
    q = torch.randn(len(step.positions), shape.heads * shape.head_dim).to(dtype)
    expected = run(REFERENCES, attention_op(shape), context, step, q)
    _poison_the_rest(context, step)
    assert_close(run(KERNELS, attention_op(shape), context, step, q), expected)


LIMITS: list[dict[str, Any]] = [
    *({"window": 1}, {"window": 70, "soft_cap": 1.5}, {"window": 20, "soft_cap": 2.0, "sinks": True}, {"sinks": True})
]


@pytest.mark.parametrize("attributes", LIMITS)
def test_attention_with_windows_caps_and_sinks(attributes: dict[str, Any]) -> None:
    """What a window hides is not read: it may be anything."""
    shape = Shape(2, 1, 16, 16)
    step = make_step([(1, 0), (1, 150), (18, 75), (3, 0)], shape.block_size)
    context = replace(shape.context(torch.float32), weights=make_context(weights={"sinks": SINKS}).weights)
    q, op = torch.randn(len(step.positions), shape.heads * shape.head_dim), attention_op(shape, **attributes)
    expected = run(REFERENCES, op, context, step, q)
    _poison_the_rest(context, step, attributes.get("window", 0))
    assert_close(run(KERNELS, op, context, step, q), expected)


def _poison_the_rest(context: KernelContext, step: Step, window: int = 0) -> None:
    owned = torch.zeros(len(context.keys[1]), context.block_size, dtype=torch.bool)
    counts = (step.host_row_starts[1:] - step.host_row_starts[:-1]).tolist()
    for table, length, count in zip(step.tables, step.host_lengths.tolist(), counts, strict=True):
        places = torch.arange(max(0, length - count + 1 - window) if window else 0, length)
        owned[table[places // context.block_size], places % context.block_size] = True
    for cache in (context.keys[1], context.values[1]):
        cache.transpose(1, 2)[~owned] = float("nan")


@pytest.mark.parametrize("splits", [1, 2, 32])
def test_decode_attention_is_the_same_however_the_context_is_split(
    splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = SHAPES[2]
    tuned = replace(tuning(torch.device("cpu")), most_splits=splits, programs=10**6)
    monkeypatch.setattr(triton_attention, "tuning", lambda device: tuned)
    context, step = shape.context(torch.float32), make_step([(1, 500), (1, 63), (1, 64), (1, 129)], 16)
    q = torch.randn(4, shape.heads * shape.head_dim)
    expected = run(REFERENCES, attention_op(shape), context, step, q)
    kernel = KERNELS[OpKind.PAGED_ATTENTION]
    plan = kernel.plan(context, step, attention_op(shape).attributes)
    for _ in range(2):  # as two layers do, over one plan
        assert_close(kernel.bind(attention_op(shape), context)(plan, q), expected)
    assert not plan.decode.arrived.any()


def test_padding_rows_read_and_write_nothing() -> None:
    """Rows behind the sequences' have no positions and no place: their table names blocks that don't exist."""
    shape = SHAPES[2]
    contexts = shape.context(torch.float32), shape.context(torch.float32)
    step = make_step([(1, 200), (1, 7)], shape.block_size)

    def padded(tensor: torch.Tensor, value: int) -> torch.Tensor:
        return torch.cat((tensor, torch.full((2, *tensor.shape[1:]), value)))

    filled = replace(
        step,
        token_ids=padded(step.token_ids, 0),
        positions=padded(step.positions, 0),
        places=padded(step.places, -1),
        tables=padded(step.tables, 2**40),
        lengths=padded(step.lengths, 0),
        host_lengths=padded(torch.from_numpy(step.host_lengths), 0).numpy(),
        host_row_starts=torch.arange(5).numpy(),
    )
    q = torch.randn(4, shape.heads * shape.head_dim)
    found = run(KERNELS, attention_op(shape), contexts[0], filled, q)
    assert_close(found[:2], run(REFERENCES, attention_op(shape), contexts[0], step, q[:2]))
    assert not found[2:].any()
    qkv = torch.randn(4, (shape.heads + 2 * shape.kv_heads) * shape.head_dim)
    op = Op(OpKind.ROPE_CACHE, (1,), (2,), attributes=rope_into(1, shape.heads, shape.kv_heads, shape.head_dim))
    found = run(KERNELS, op, contexts[0], filled, qkv)
    assert_close(found[:2], run(REFERENCES, op, contexts[1], step, qkv[:2]))
    _assert_same_caches(*contexts)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("shape", SHAPES)
def test_rope_and_cache(shape: Shape, dtype: torch.dtype) -> None:
    step = make_step([(1, 11), (5, 0), (3, 140)], shape.block_size)
    qkv = torch.randn(9, (shape.heads + 2 * shape.kv_heads) * shape.head_dim).to(dtype)
    op = Op(OpKind.ROPE_CACHE, (1,), (2,), attributes=rope_into(1, shape.heads, shape.kv_heads, shape.head_dim))
    contexts = shape.context(dtype), shape.context(dtype)
    assert_close(run(KERNELS, op, contexts[0], step, qkv), run(REFERENCES, op, contexts[1], step, qkv))
    _assert_same_caches(*contexts)


def _assert_same_caches(found: KernelContext, expected: KernelContext) -> None:
    for mine, theirs in zip(found.keys, expected.keys, strict=True):
        assert_close(mine, theirs)
    for mine, theirs in zip(found.values, expected.values, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(("rows", "width"), [(1, 576), (3, 48), (9, 1000)])
def test_norms(rows: int, width: int, dtype: torch.dtype) -> None:
    context = make_context(dtype, weights={"n": 1 + 0.3 * torch.randn(width)})
    x, residual = torch.randn(rows, width).to(dtype), 3 * torch.randn(rows, width).to(dtype)
    step = make_step([(1, 0)])
    op = Op(OpKind.RMS_NORM, (1,), (2,), ("n",), attributes=Norm(1e-5))
    assert_close(run(KERNELS, op, context, step, x), run(REFERENCES, op, context, step, x))
    op = Op(OpKind.ADD_RMS_NORM, (1, 2), (3, 4), ("n",), attributes=Norm(1e-5))
    found, expected = (run(table, op, context, step, x, residual) for table in (KERNELS, REFERENCES))
    assert_close(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(("rows", "width"), [(1, 1536), (5, 100)])
def test_silu_mul(rows: int, width: int, dtype: torch.dtype) -> None:
    context, step = make_context(dtype), make_step([(1, 0)])
    gate_up = 3 * torch.randn(rows, 2 * width).to(dtype)
    op = Op(OpKind.SILU_MUL, (1,), (2,))
    assert_close(run(KERNELS, op, context, step, gate_up), run(REFERENCES, op, context, step, gate_up))


def test_blocks_of_odd_sizes_are_left_to_torch() -> None:
    shape = Shape(6, 2, 8, 4)
    context, step = shape.context(torch.float32), make_step([(1, 9), (5, 3)], 4)
    q = torch.randn(6, 48)
    expected = run(REFERENCES, attention_op(shape), context, step, q)
    assert_close(run(KERNELS, attention_op(shape), context, step, q), expected)
