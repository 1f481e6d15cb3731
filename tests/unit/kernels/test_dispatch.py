"""Dispatch picks the best implementation that fits, once."""

import pytest
import torch

from polyfleet.graph.ops import Op, OpKind
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.dispatch import Implementation, Kernel, Target, choose
from polyfleet.kernels.table import implementations
from polyfleet.kernels.torch.reference import REFERENCE

CPU = Target("cpu", torch.float32)


def never_bound(op: Op, context: KernelContext) -> Kernel:
    raise AssertionError("dispatch binds nothing")


def linear(
    name: str,
    rank: int = 5,
    device_types: frozenset[str] | None = None,
    dtypes: frozenset[torch.dtype] | None = None,
    capabilities: frozenset[str] = frozenset(),
) -> Implementation:
    return Implementation(
        OpKind.LINEAR,
        name,
        never_bound,
        device_types=device_types,
        dtypes=dtypes,
        capabilities=capabilities,
        rank=rank,
    )


def chosen(target: Target, *more: Implementation) -> str:
    return choose((*REFERENCE, *more), target)[OpKind.LINEAR].name


def test_the_reference_runs_everywhere() -> None:
    found = choose(REFERENCE, Target("some-device", torch.float64))
    assert {each.name for each in found.values()} == {"reference"}
    assert set(found) == set(OpKind)


def test_needs_are_met_before_rank_counts() -> None:
    on_card = linear("card", device_types=frozenset({"cuda"}))
    half = linear("half", dtypes=frozenset({torch.bfloat16}))
    vectors = linear("vectors", capabilities=frozenset({"avx512f", "avx512_vnni"}))
    assert chosen(CPU, on_card, half, vectors) == "reference"
    assert chosen(Target("cuda", torch.float32), on_card) == "card"
    assert chosen(Target("cpu", torch.bfloat16), half) == "half"
    assert chosen(Target("cpu", torch.float32, frozenset({"avx512f"})), vectors) == "reference"
    assert chosen(Target("cpu", torch.float32, frozenset({"avx512f", "avx512_vnni", "amx_int8"})), vectors) == "vectors"


def test_the_highest_rank_wins_and_equals_keep_their_order() -> None:
    assert chosen(CPU, linear("slow", rank=1), linear("fast", rank=2)) == "fast"
    assert chosen(CPU, linear("fast", rank=2), linear("slow", rank=1)) == "fast"
    assert chosen(CPU, linear("first"), linear("second")) == "first"


def test_an_op_without_implementation_is_named() -> None:
    table = [each for each in REFERENCE if each.op is not OpKind.SILU_MUL]
    with pytest.raises(ValueError, match=r"no implementation of silu_mul for cpu in torch\.float32"):
        choose(table, CPU)


def test_the_real_table_is_complete_for_every_device() -> None:
    for device_type in ("cpu", "cuda", "xpu", "npu", "mlu", "mps"):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            assert set(choose(implementations(), Target(device_type, dtype))) == set(OpKind)
