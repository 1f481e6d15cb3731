"""Reference kernels against the formulas of their ops, written out in float64."""

import math
from collections.abc import Sequence

import pytest
import torch
from tests.support.kernel_cases import attention_over, make_context, make_step, rope_into

from polyfleet.graph.ops import CacheWrite, Norm, Op, OpKind, Rope
from polyfleet.kernels.dispatch import Implementation
from polyfleet.kernels.torch.batched import BATCHED
from polyfleet.kernels.torch.reference import REFERENCE

BIND = {each.op: each.bind for each in REFERENCE}


def test_embedding_looks_up_rows() -> None:
    table = torch.randn(10, 6)
    kernel = BIND[OpKind.EMBEDDING](Op(OpKind.EMBEDDING, (0,), (1,), ("e",)), make_context(weights={"e": table}))
    step = make_step([(1, 5), (3, 0)])
    assert torch.equal(kernel(step, step.token_ids), table[[0, 1, 2, 3]])


def test_rms_norm_by_hand() -> None:
    context = make_context(weights={"n": torch.tensor([1.0, 2.0, -1.0])})
    kernel = BIND[OpKind.RMS_NORM](Op(OpKind.RMS_NORM, (1,), (2,), ("n",), attributes=Norm(1e-5)), context)
    size = math.sqrt((9 + 16 + 0) / 3 + 1e-5)
    expected = torch.tensor([[3 / size, 8 / size, 0.0]])
    torch.testing.assert_close(kernel(None, torch.tensor([[3.0, 4.0, 0.0]])), expected)


@pytest.mark.parametrize("table", [REFERENCE, BATCHED], ids=["reference", "batched"])
def test_wide_norms_multiply_before_they_round(table: Sequence[Implementation]) -> None:
    """As transformers' Gemma does: gains are 1 + w in float32, of which bfloat16 would keep three digits."""
    torch.manual_seed(3)
    gain, x = 1 + torch.randn(8).bfloat16().float() / 50, torch.randn(5, 16).bfloat16()
    context, step = make_context(torch.bfloat16, weights={"n": gain}), make_step([(1, 0)])
    wide = x.float().view(5, 2, 8)
    expected = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6) * gain).bfloat16().flatten(1)
    op = Op(OpKind.RMS_NORM, (1,), (2,), ("n",), attributes=Norm(1e-6, 8, wide=True))
    kernel = next(each for each in table if each.op is op.kind).bind(op, context)
    assert torch.equal(kernel(step, x), expected)


def test_add_rms_norm_gives_norm_and_sum() -> None:
    context = make_context(weights={"n": torch.randn(6)})
    norm = BIND[OpKind.RMS_NORM](Op(OpKind.RMS_NORM, (1,), (2,), ("n",), attributes=Norm(1e-5)), context)
    both = BIND[OpKind.ADD_RMS_NORM](Op(OpKind.ADD_RMS_NORM, (1, 2), (3, 4), ("n",), attributes=Norm(1e-5)), context)
    x, residual = torch.randn(4, 6), torch.randn(4, 6)
    normed, total = both(None, x, residual)
    assert torch.equal(total, x + residual)
    assert torch.equal(normed, norm(None, x + residual))


def test_linear_puts_results_side_by_side_with_biases() -> None:
    weights = {"a": torch.randn(3, 5), "b": torch.randn(2, 5), "a.bias": torch.randn(3), "b.bias": torch.randn(2)}
    op = Op(OpKind.LINEAR, (1,), (2,), ("a", "b"), ("a.bias", "b.bias"))
    x = torch.randn(7, 5)
    found = BIND[OpKind.LINEAR](op, make_context(weights=weights))(None, x)
    left = x.double() @ weights["a"].double().t() + weights["a.bias"]
    right = x.double() @ weights["b"].double().t() + weights["b.bias"]
    torch.testing.assert_close(found.double(), torch.cat((left, right), 1), atol=1e-5, rtol=1e-5)


def test_silu_mul_by_hand() -> None:
    kernel = BIND[OpKind.SILU_MUL](Op(OpKind.SILU_MUL, (1,), (2,)), make_context())
    found = kernel(None, torch.tensor([[1.0, -2.0, 3.0, 5.0]]))
    expected = [3.0 / (1 + math.exp(-1)), 5.0 * -2 / (1 + math.exp(2))]
    assert found.flatten().tolist() == pytest.approx(expected)


def test_select_rows() -> None:
    kernel = BIND[OpKind.SELECT_ROWS](Op(OpKind.SELECT_ROWS, (1,), (2,)), make_context())
    x = torch.randn(6, 2)
    assert torch.equal(kernel(make_step([(1, 5), (3, 0), (2, 1)]), x), x[[0, 3, 5]])


def test_rope_rotates_pairs_and_writes_the_layers_cache() -> None:
    context, step = make_context(), make_step([(1, 9), (3, 2)])
    before = [[cache.clone() for cache in caches] for caches in (context.keys, context.values)]
    qkv = torch.randn(4, (6 + 2 + 2) * 8)
    kernel = BIND[OpKind.ROPE_CACHE](Op(OpKind.ROPE_CACHE, (1,), (2,), attributes=rope_into(1)), context)
    rows = qkv.double().view(4, 10, 8)
    angles = torch.outer(torch.tensor([9, 2, 3, 4]), torch.tensor(rope_into().rope.frequencies).double())
    # A pair (i, i + 4) is one complex number, turned by its angle.
    turned = torch.view_as_complex(torch.stack((rows[..., :4], rows[..., 4:]), -1)) * torch.polar(
        torch.ones_like(angles), angles
    ).unsqueeze(1)
    expected = torch.cat((turned.real, turned.imag), -1)

    query = kernel(step, qkv)
    torch.testing.assert_close(query.double(), expected[:, :6].flatten(1), atol=1e-5, rtol=1e-5)
    for row, place in enumerate(step.places.tolist()):
        torch.testing.assert_close(
            context.keys[1][place // 4, :, place % 4].double(), expected[row, 6:8], atol=1e-5, rtol=1e-5
        )
        assert torch.equal(context.values[1][place // 4, :, place % 4], qkv[row].view(10, 8)[8:])
    untouched = torch.ones(64 * 4, dtype=torch.bool)
    untouched[step.places] = False
    for cache, old in zip((context.keys, context.values), before, strict=True):
        assert torch.equal(cache[0], old[0])
        flat, old_flat = cache[1].transpose(1, 2).flatten(0, 1), old[1].transpose(1, 2).flatten(0, 1)
        assert torch.equal(flat[untouched], old_flat[untouched])


def test_attention_is_causal_over_the_block_table() -> None:
    context, step = make_context(), make_step([(1, 6), (5, 0), (4, 7)])
    q = torch.randn(10, 6 * 8)
    kernel = BIND[OpKind.PAGED_ATTENTION](Op(OpKind.PAGED_ATTENTION, (1,), (2,), attributes=attention_over(1)), context)
    found = kernel(step, q).view(10, 6, 8).double()
    for sequence, table in enumerate(step.tables.tolist()):
        first, end = step.row_starts[sequence : sequence + 2].tolist()
        for row in range(first, end):
            places = [(table[p // 4], p % 4) for p in range(int(step.positions[row]) + 1)]
            for head in range(6):
                keys = torch.stack([context.keys[1][b, head // 3, o] for b, o in places]).double()
                values = torch.stack([context.values[1][b, head // 3, o] for b, o in places]).double()
                scores = keys @ q[row].view(6, 8)[head].double() / math.sqrt(8)
                expected = torch.softmax(scores, 0) @ values
                torch.testing.assert_close(found[row, head], expected, atol=1e-5, rtol=1e-5)


def test_add_mul_and_silu() -> None:
    context, x, y = make_context(), torch.randn(3, 4), torch.randn(3, 4)
    assert torch.equal(BIND[OpKind.ADD](Op(OpKind.ADD, (1, 2), (3,)), context)(None, x, y), x + y)
    assert torch.equal(BIND[OpKind.MUL](Op(OpKind.MUL, (1, 2), (3,)), context)(None, x, y), x * y)
    silu = BIND[OpKind.SILU](Op(OpKind.SILU, (1,), (2,)), context)(None, x)
    torch.testing.assert_close(silu, (x.double() / (1 + (-x.double()).exp())).float())


def test_rope_and_cache_write_are_what_rope_cache_does_at_once() -> None:
    step, qkv, both = make_step([(1, 9), (3, 2)]), torch.randn(4, (6 + 2 + 2) * 8), rope_into(1)
    fused, plain = make_context(), make_context()
    expected = BIND[OpKind.ROPE_CACHE](Op(OpKind.ROPE_CACHE, (1,), (2,), attributes=both), fused)(step, qkv)
    rope = BIND[OpKind.ROPE](Op(OpKind.ROPE, (1,), (2,), attributes=Rope(8, both.rope.frequencies)), plain)
    write = BIND[OpKind.CACHE_WRITE](Op(OpKind.CACHE_WRITE, (3, 4), (), attributes=CacheWrite(1)), plain)
    q, k, v = torch.split(qkv, [48, 16, 16], dim=1)
    assert torch.equal(rope(step, q), expected)
    assert write(step, rope(step, k), v) == ()
    for mine, theirs in zip((*plain.keys, *plain.values), (*fused.keys, *fused.values), strict=True):
        assert torch.equal(mine, theirs)


def test_activations_alone() -> None:
    context, x = make_context(), torch.linspace(-6, 6, 49)[None]
    wide = x.double()
    expected = {
        OpKind.RELU: wide.clamp(min=0),
        OpKind.GELU: wide * (1 + torch.special.erf(wide / math.sqrt(2))) / 2,
        OpKind.GELU_TANH: wide * (1 + (math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)).tanh()) / 2,
    }
    for kind, right in expected.items():
        torch.testing.assert_close(
            BIND[kind](Op(kind, (1,), (2,)), context)(None, x).double(), right, atol=1e-6, rtol=0
        )


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layer_norm_by_hand(dtype: torch.dtype, biased: bool) -> None:
    weight, bias = torch.tensor([1.0, 2.0, 0.5]), torch.tensor([0.0, -1.0, 4.0])
    context = make_context(dtype, weights={"weight": weight, "bias": bias})
    op = Op(OpKind.LAYER_NORM, (1,), (2,), ("weight",), ("bias",) if biased else (), Norm(0.5))
    found = BIND[OpKind.LAYER_NORM](op, context)(None, torch.tensor([[2.0, 4.0, 9.0]], dtype=dtype))
    factor = 1 / math.sqrt(26 / 3 + 0.5)  # of differences -3, -1 and 4 to the mean 5
    right = torch.tensor([[-3 * factor, -2 * factor, 2 * factor]]) + biased * bias
    torch.testing.assert_close(found, right.to(dtype))


def test_argmax_takes_the_first() -> None:
    nan = math.nan
    rows = torch.tensor([[1.0, 3.0, 3.0], [-math.inf] * 3, [math.inf, nan, nan], [-2.0, -3.0, -1.0]])
    found = BIND[OpKind.ARGMAX](Op(OpKind.ARGMAX, (1,), (2,)), make_context())(None, rows)
    assert found.tolist() == [[1], [0], [1], [2]]
