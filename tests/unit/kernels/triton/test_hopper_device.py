"""Prompts' attention in Gluon, which is not interpreted, against the reference in float32: where its device is."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.support.drawing import devices
from tests.support.kernel_cases import Shape, attention_over, make_step

triton = pytest.importorskip("triton")

from polyfleet.graph.ops import Op, OpKind  # noqa: E402
from polyfleet.kernels.step import Step, upload_all  # noqa: E402
from polyfleet.kernels.torch.reference import REFERENCE  # noqa: E402
from polyfleet.kernels.triton import TRITON, hopper  # noqa: E402
from polyfleet.kernels.triton.tuning import tuning  # noqa: E402

TENSORS = ("token_ids", "positions", "blocks", "offsets", "places", "selected", "slots", "lengths", "row_starts")
TOLERANCE = 2e-2
MIXTURES = [  # of (rows, start)
    [(130, 0)],
    [(2048, 1000)],
    [(1, 11), (1, 100), (66, 64), (3, 14), (300, 0), (64, 0), (129, 1024)],
    [(192, 0), (193, 128), (2, 1500), (128, 128)],
]


def moved(step: Step, device: torch.device) -> Step:
    arrays = {name: getattr(step, name).numpy() for name in TENSORS}
    tensors: dict[str, Any] = dict(zip(arrays, upload_all(list(arrays.values()), device), strict=True))
    return replace(step, **tensors, tables=step.tables.to(device))


@pytest.mark.parametrize("shape", [Shape(8, 2, 128, 64), Shape(8, 1, 128, 64), Shape(4, 4, 64, 64)])
@pytest.mark.parametrize("parts", MIXTURES)
@pytest.mark.parametrize("name", [each for each in devices() if tuning(torch.device(each)).hopper is not None])
def test_prompts_attention(name: str, parts: Sequence[tuple[int, int]], shape: Shape) -> None:
    """Again and again the same bits: nothing is read before it is there."""
    device, step = torch.device(name), make_step(parts, shape.block_size)
    context = shape.context(torch.bfloat16)
    over = attention_over(1, shape.heads, shape.kv_heads, shape.head_dim)
    op = Op(OpKind.PAGED_ATTENTION, (1,), (2,), attributes=over)
    q = torch.randn(step.num_rows, shape.heads * shape.head_dim).bfloat16()
    wide = replace(context, dtype=torch.float32, caches=[each.float() for each in context.caches])
    reference = next(each for each in REFERENCE if each.op is OpKind.PAGED_ATTENTION)
    expected = reference.bind(op, wide)(reference.plan(wide, step, over), q.float())
    there = replace(context, device=device, caches=[each.to(device) for each in context.caches])
    assert hopper.fits(over, there, sinks=False)
    kernel = next(each for each in TRITON if each.op is OpKind.PAGED_ATTENTION)
    plan, asked = kernel.plan(there, moved(step, device), over), q.to(device)
    found = [kernel.bind(op, there)(plan, asked) for _ in range(20)]
    torch.testing.assert_close(found[0].float().cpu(), expected, atol=TOLERANCE, rtol=TOLERANCE)
    assert all(torch.equal(each, found[0]) for each in found)
