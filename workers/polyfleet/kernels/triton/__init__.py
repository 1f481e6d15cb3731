"""Kernels in Triton: one source for CUDA and ROCm, and for the CPU under Triton's interpreter, where tests run them.

Importing this raises ImportError where Triton is missing.
"""

from collections.abc import Callable
from typing import Any

import triton

from polyfleet.graph.ops import Op, OpKind
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.dispatch import Implementation, Kernel
from polyfleet.kernels.triton import (
    activation,
    adapters,
    attention,
    experts,
    latent,
    narrow,
    norms,
    recurrent,
    rope,
    routes,
    shrink,
    writes,
)

WHERE = frozenset({"cuda", "cpu"} if triton.knobs.runtime.interpret else {"cuda"})  # torch calls ROCm "cuda" too
NEEDS = frozenset({"triton"})
OVER_CACHES = frozenset(
    {
        *(OpKind.ROPE_CACHE, OpKind.PAGED_ATTENTION, OpKind.ROPE_ATTENTION, OpKind.CACHE_WRITE),
        *(OpKind.LATENT_WRITE, OpKind.LATENT_ATTENTION),
    }
)


def _implementation(
    op: OpKind, bind: Callable[[Op, KernelContext], Kernel], *, name: str = "triton", **options: Any
) -> Implementation:
    options |= {"capabilities": NEEDS, "codes": op not in OVER_CACHES}
    return Implementation(op, name, bind, device_types=WHERE, capturable=True, rank=2, **options)


TRITON = (
    _implementation(OpKind.RMS_NORM, norms.bind_rms_norm),
    _implementation(OpKind.ADD_RMS_NORM, norms.bind_add_rms_norm),
    _implementation(OpKind.SILU_MUL, activation.bind_silu_mul),
    _implementation(OpKind.ROPE_CACHE, rope.bind_rope_cache, plan=rope.plan_rope),
    _implementation(OpKind.PAGED_ATTENTION, attention.bind_attention, plan=attention.plan_attention),
    _implementation(OpKind.CACHE_WRITE, writes.bind_cache_write),
    _implementation(OpKind.LATENT_WRITE, writes.bind_latent_write),
    _implementation(OpKind.LATENT_ATTENTION, latent.bind_latent_attention, plan=latent.plan_latent),
    _implementation(OpKind.ROUTE, routes.bind_route),
    _implementation(OpKind.EXPERTS, experts.bind_experts),
    _implementation(OpKind.CAUSAL_CONV, recurrent.bind_causal_conv),
    _implementation(OpKind.DELTA_RULE, recurrent.bind_delta_rule),
    _implementation(OpKind.SSM_SCAN, recurrent.bind_ssm_scan),
    _implementation(OpKind.LINEAR, narrow.bind_linear, name="torch, or triton where quantised"),
    _implementation(OpKind.GAIN, narrow.bind_gain),
    _implementation(OpKind.LINEAR_ADD, narrow.bind_linear_add),
    _implementation(OpKind.NORM_LINEAR, narrow.bind_norm_linear),
    _implementation(OpKind.NORM_SILU_MUL, narrow.bind_norm_silu_mul),
    _implementation(OpKind.ADAPT, adapters.bind_adapt, plan=adapters.plan_adapters),
    _implementation(OpKind.SHRINK, shrink.bind_shrink, plan=shrink.plan_shrinks),
    _implementation(OpKind.ROPE_ATTENTION, narrow.bind_rope_attention, plan=narrow.plan_rope_attention),
)
