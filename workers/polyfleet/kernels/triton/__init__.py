"""Kernels in Triton: one source for CUDA and ROCm, and for the CPU under Triton's interpreter, where tests run them.

Importing this raises ImportError where Triton is missing.
"""

from collections.abc import Callable
from typing import Any

import triton

from polyfleet.graph.ops import Op, OpKind
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.dispatch import Implementation, Kernel
from polyfleet.kernels.triton import activation, attention, norms, rope

WHERE = frozenset({"cuda", "cpu"} if triton.knobs.runtime.interpret else {"cuda"})  # torch calls ROCm "cuda" too
NEEDS = frozenset({"triton"})


def _implementation(op: OpKind, bind: Callable[[Op, KernelContext], Kernel], **options: Any) -> Implementation:
    return Implementation(
        op, "triton", bind, device_types=WHERE, capabilities=NEEDS, capturable=True, rank=2, **options
    )


TRITON = (
    _implementation(OpKind.RMS_NORM, norms.bind_rms_norm),
    _implementation(OpKind.ADD_RMS_NORM, norms.bind_add_rms_norm),
    _implementation(OpKind.SILU_MUL, activation.bind_silu_mul),
    _implementation(OpKind.ROPE_CACHE, rope.bind_rope_cache, plan=rope.plan_rope),
    _implementation(OpKind.PAGED_ATTENTION, attention.bind_attention, plan=attention.plan_attention),
)
