"""Caches in e4m3 under Triton's kernels. The interpreter rounds to them wrongly: what is written is exact there."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.interpreted.test_captured import Replays, capturing
from tests.support.batching import over, run_all
from tests.support.batching import request as make_request
from tests.support.eager_models import tiny_model
from tests.support.kernel_cases import Shape, attention_over, make_step, rope_into

from polyfleet.engine.batching.batch import BatchLimits
from polyfleet.executors.captured import CapturedExecutor
from polyfleet.executors.eager import EagerExecutor
from polyfleet.graph.ops import Op, OpKind, Rope, RopeAttention
from polyfleet.kernels.cached import BYTES, loaded, stored
from polyfleet.kernels.torch.reference import REFERENCE
from polyfleet.kernels.triton import TRITON

BYTE = torch.empty(0, dtype=BYTES)
TABLES = [{each.op: each for each in table} for table in (TRITON, REFERENCE)]


def exactly(*shape: int) -> torch.Tensor:
    """Random numbers that e4m3 has."""
    return loaded(stored(2 * torch.randn(shape), BYTE), torch.float32)


def test_writing_and_attending() -> None:
    """Numbers too large are cut off; a step's own keys and values count as the cache has them."""
    torch.manual_seed(3)
    shape = Shape(4, 2, 16, 16)
    wide = shape.context(torch.float32)
    contexts = [replace(wide, caches=[stored(each, BYTE) for each in wide.caches]) for _ in TABLES]
    sizes = shape.heads, shape.kv_heads, shape.head_dim
    both = replace(rope_into(1, *sizes), rope=Rope(16, (0.0,) * 8)), attention_over(1, *sizes)
    ops = [
        Op(OpKind.ROPE_CACHE, (1,), (2,), attributes=both[0]),
        Op(OpKind.PAGED_ATTENTION, (1,), (2,), attributes=both[1]),
    ]

    def run(op: Op, parts: list[tuple[int, int]], x: torch.Tensor) -> list[torch.Tensor]:
        step = make_step(parts, shape.block_size)
        kernels = [(table[op.kind], context) for table, context in zip(TABLES, contexts, strict=True)]
        return [each.bind(op, context)(each.plan(context, step, op.attributes), x) for each, context in kernels]

    parts = [(1, 40), (1, 0), (3, 20)]
    qkv = exactly(5, 8 * 16)
    qkv[1, 4 * 16 :] *= 1000
    torch.testing.assert_close(*run(ops[0], parts, qkv))
    assert torch.equal(contexts[0].caches[1], contexts[1].caches[1])
    assert loaded(contexts[0].caches[1], torch.float32).abs().max() == 448
    torch.testing.assert_close(*run(ops[1], parts, torch.randn(5, 4 * 16)), atol=1e-4, rtol=1e-4)
    fused = Op(OpKind.ROPE_ATTENTION, (1,), (2,), attributes=RopeAttention(*both))
    qkv = exactly(2, 8 * 16)
    torch.testing.assert_close(*run(fused, [(1, 40), (1, 0)], qkv), atol=1e-4, rtol=1e-4)


@pytest.mark.usefixtures("undivided")
def test_captured_steps(tmp_path: Any) -> None:
    """The same tokens as eager ones on the same kernels; a block takes half of float16's."""
    task = capturing(tiny_model(tmp_path / "model"), kv_dtype="fp8")
    found = []
    executors: list[Any] = [EagerExecutor(task, depth=1), CapturedExecutor(task, depth=2, capture=Replays())]
    for executor in executors:
        batcher = over(executor, BatchLimits(2, 24, 96), num_blocks=12, block_size=16)
        for number in range(2):
            batcher.add(make_request(number, 4 + number, 4))
        found.append({name: each.token_ids for name, each in run_all(batcher).items()})
    assert found[0] == found[1]
    assert {each.dtype for each in executors[1]._storage.caches} == {BYTES}
