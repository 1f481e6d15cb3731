"""Kernels in Triton: one source for CUDA and ROCm, and for the CPU under Triton's interpreter, where tests run them.

Importing this raises ImportError where Triton is missing.
"""

import triton

from polyfleet.graph.ops import OpKind
from polyfleet.kernels.dispatch import Implementation
from polyfleet.kernels.triton import activation, attention, norms, rope

WHERE = frozenset({"cuda", "cpu"} if triton.knobs.runtime.interpret else {"cuda"})  # torch calls ROCm "cuda" too
NEEDS = frozenset({"triton"})

TRITON = (
    Implementation(OpKind.RMS_NORM, "triton", norms.bind_rms_norm, device_types=WHERE, capabilities=NEEDS, rank=2),
    Implementation(
        OpKind.ADD_RMS_NORM, "triton", norms.bind_add_rms_norm, device_types=WHERE, capabilities=NEEDS, rank=2
    ),
    Implementation(
        OpKind.SILU_MUL, "triton", activation.bind_silu_mul, device_types=WHERE, capabilities=NEEDS, rank=2
    ),
    Implementation(
        OpKind.ROPE_CACHE,
        "triton",
        rope.bind_rope_cache,
        rope.plan_rope,
        device_types=WHERE,
        capabilities=NEEDS,
        rank=2,
    ),
    Implementation(
        OpKind.PAGED_ATTENTION,
        "triton",
        attention.bind_attention,
        attention.plan_attention,
        device_types=WHERE,
        capabilities=NEEDS,
        rank=2,
    ),
)
