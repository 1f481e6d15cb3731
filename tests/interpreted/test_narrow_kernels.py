"""Products of few rows, with what stands before and behind them, and weights that stay quantised: interpreted."""

import os
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.interpreted.test_kernels import KERNELS, _assert_same_caches, assert_close, poisoned_outputs, run
from tests.support.kernel_cases import Shape, attention_over, make_context, make_step, rope_into

from polyfleet.graph.ops import Norm, Op, OpKind, RopeAttention
from polyfleet.kernels.torch.reference import REFERENCE
from polyfleet.kernels.triton.linear import Operands, linear, unpacked
from polyfleet.kernels.triton.matrices import Matrix
from polyfleet.kernels.triton.pairs import pairs
from polyfleet.kernels.triton.tuning import Cut, Tuning, tuning
from polyfleet.kernels.weights.packed import Kind, Packed, pack, quantise, unpack

REFERENCES = {each.op: each for each in REFERENCE}
poisoned = poisoned_outputs
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def fresh_numbers() -> None:
    seed = int.from_bytes(os.urandom(4), "little")
    torch.manual_seed(seed)
    print("seed", seed)


def cut(block: int, step: int, programs: int) -> Tuning:
    """Tuning of products alone; the columns of rows of any length are split."""
    base, cuts = tuning(CPU), (Cut(128, block, step, 4, 1, programs, 0),)
    return replace(base, products=5 * (cuts,))


def matrix(kind: str, rows: int, columns: int) -> torch.Tensor | Packed:
    """Random weights: dense, or packed in one of the ways that there are."""
    dense: torch.Tensor = torch.randn(rows, columns) / columns**0.5
    if kind == "dense":
        return dense
    if kind in ("fp8", "int4"):
        return quantise(Kind[kind.upper()], dense)
    if kind == "fp8 groups":
        numbers = dense.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
        return pack(Kind.FP8, numbers, (0.5 + torch.rand(rows, columns // 128)) * 2.0**120)
    group = 128 if kind == "int4 minima" else 32
    codes, scales = torch.randint(0, 16, (rows, columns), dtype=torch.uint8), torch.rand(rows, columns // group)
    return pack(Kind.INT4, codes, scales / columns**0.5, -7.5 * scales / columns**0.5)


@pytest.mark.parametrize(("kind", "rows", "outputs", "columns", "tuned"), [
    ("dense", 1, 100, 96, cut(32, 32, 1)),
    ("dense", 1, 44, 96, replace(cut(32, 32, 8), alone=Cut(1, 8, 1, 4, 1))),
    ("dense", 5, 40, 192, cut(32, 64, 8)),
    ("fp8", 1, 40, 128, cut(32, 16, 8)),
    ("fp8", 17, 32, 320, cut(32, 64, 1)),
    ("fp8 groups", 2, 40, 256, cut(32, 32, 1)),
    ("int4", 1, 40, 256, cut(32, 16, 12)),
    ("groups", 3, 40, 512, cut(32, 64, 8)),
])  # fmt: skip
def test_products_with_what_is_around_them(kind: str, rows: int, outputs: int, columns: int, tuned: Tuning) -> None:
    made = matrix(kind, outputs, columns)
    dense = made if isinstance(made, torch.Tensor) else unpack(made, torch.float32)
    bound, x = Matrix.of(made, CPU), torch.randn(rows, columns)
    residual, gain, bias = torch.randn(rows, outputs), torch.randn(outputs), torch.randn(outputs)
    squares = columns / 3 * (0.5 + torch.rand(rows, 3))  # as rows of about one have
    factor = torch.rsqrt(squares.sum(1, keepdim=True) / columns + 1e-5)
    expected = x @ dense.T
    for _ in range(2):  # counters are as they were
        assert_close(linear(bound, tuned, x, Operands(bias=bias))[0], expected + bias)
    normed = expected * factor
    assert_close(linear(bound, tuned, x, Operands(squares, 1e-5))[0], normed)
    halves = torch.nn.functional.silu(normed[:, : outputs // 2]) * normed[:, outputs // 2 :]
    assert_close(linear(bound, tuned, x, Operands(squares, 1e-5), silu=True)[0], halves)
    total, gained, sums = linear(bound, tuned, x, Operands(residual=residual, gain=gain))
    assert_close(total, expected + residual)
    assert_close(gained, (expected + residual) * gain)
    torch.testing.assert_close(sums.sum(1), total.square().sum(1))
    assert not bound.arrived.any()
    if isinstance(made, Packed):
        assert torch.equal(unpacked(bound, tuned, torch.float32), dense)


@pytest.mark.parametrize(("kind", "rows", "outputs", "columns", "tuned"), [
    ("fp8", 1, 40, 256, cut(32, 64, 8)),
    ("fp8", 17, 32, 320, cut(32, 64, 1)),
    ("fp8 groups", 3, 40, 512, cut(32, 64, 8)),
    ("int4", 1, 40, 512, cut(32, 64, 8)),
    ("int4", 9, 48, 256, cut(32, 64, 1)),
    ("int4 minima", 5, 32, 768, cut(32, 64, 2)),
])  # fmt: skip
def test_rows_meet_bytes_as_pairs_and_lose_nothing(
    kind: str, rows: int, outputs: int, columns: int, tuned: Tuning
) -> None:
    packed = matrix(kind, outputs, columns)
    assert isinstance(packed, Packed)
    x = (torch.randn(rows, columns) * torch.randn(rows, columns).exp()).bfloat16()
    word = torch.arange(columns) // 4
    order = word // packed.span * 4 * packed.span + torch.arange(columns) % 4 * packed.span + word % packed.span
    made, units, sums = pairs(x, packed.span, sums=True, chained=False)
    held = units[:, None] * (made[:, 0].float() + made[:, 1].float() / 16)
    assert (held - x.float()[:, order]).norm() < 2**-9 * x.float().norm()  # as bfloat16 rounds
    assert sums is not None
    torch.testing.assert_close(sums.T * units[:, None], held.view(rows, -1, 4 * packed.span).sum(-1), atol=1e-2, rtol=0)
    y = linear(Matrix.of(packed, CPU), replace(tuned, bytes=True), x, Operands())[0].double()
    expected = x.double() @ unpack(packed, torch.float64).T
    assert (y - expected).norm() < 2**-7 * expected.norm()  # which the interpreter cuts off where it should round


@pytest.mark.parametrize(
    ("shape", "normed", "attributes"),
    [
        (Shape(2, 1, 64, 16), False, {}),
        (Shape(4, 2, 80, 16), True, {}),
        (Shape(2, 1, 16, 16), True, {"window": 40, "soft_cap": 2.0}),
    ],
)
def test_attention_that_turns_and_writes(shape: Shape, normed: bool, attributes: dict[str, Any]) -> None:
    """Padding rows read nothing and leave nothing; a first row attends to itself alone."""
    gains = {name: 1 + 0.3 * torch.randn(shape.head_dim) for name in ("q", "k")} if normed else {}
    sizes = {"kv_heads": shape.kv_heads, "head_dim": shape.head_dim, "block_size": shape.block_size}
    contexts = [make_context(torch.float32, weights=gains, **sizes) for _ in range(2)]
    step = make_step([(1, 130), (1, 0), (1, 64), (1, 17)], shape.block_size)
    each = shape.heads, shape.kv_heads, shape.head_dim
    attention = replace(attention_over(1, *each), **attributes)
    both: Any = RopeAttention(replace(rope_into(1, *each), eps=1e-5), attention)
    op = Op(OpKind.ROPE_ATTENTION, (1,), (2,), tuple(gains), attributes=both)
    qkv = torch.randn(4, (shape.heads + 2 * shape.kv_heads) * shape.head_dim)
    assert_close(run(KERNELS, op, contexts[0], step, qkv), run(REFERENCES, op, contexts[1], step, qkv))
    _assert_same_caches(*contexts)


def test_ops_of_few_rows_are_their_references() -> None:
    step, eps = make_step([(1, 0)] * 3), Norm(1e-5)
    named = {"w": torch.randn(64, 96) / 8, "v": torch.randn(64, 96) / 8, "n": 1 + 0.3 * torch.randn(64)}
    context = make_context(weights=named | {"b": torch.randn(64), "g": torch.randn(96)})
    x, y, squares = torch.randn(3, 96), torch.randn(3, 64), 48 * (0.5 + torch.rand(3, 2))
    for op, inputs in [
        (Op(OpKind.GAIN, (1,), (2, 3), ("g",)), (x,)),
        (Op(OpKind.LINEAR_ADD, (1, 2), (3, 4, 5), ("w", "n")), (x, y)),
        (Op(OpKind.NORM_LINEAR, (1, 2), (3,), ("w", "v"), ("b", "b"), eps), (x, squares)),
        (Op(OpKind.NORM_SILU_MUL, (1, 2), (3,), ("w", "v"), attributes=eps), (x, squares)),
    ]:
        found, expected = (run(table, op, context, step, *inputs) for table in (KERNELS, REFERENCES))
        for mine, theirs in zip(
            *(each if isinstance(each, tuple) else (each,) for each in (found, expected)), strict=True
        ):
            wide = mine.shape == theirs.shape
            assert_close(mine if wide else mine.sum(1, keepdim=True), theirs)
