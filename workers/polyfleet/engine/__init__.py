"""Sequences, the Batcher and Executors: the runtime that a plain Python script can drive.

Names are imported when they are first used, so that plain data (`polyfleet.engine.request`) costs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyfleet.engine.engine import Engine
    from polyfleet.engine.kernel_graph import RunnableGraph, new_kernel_graph
    from polyfleet.engine.offline import OfflineResult, generate_offline
    from polyfleet.engine.persistent import PersistentKernel
    from polyfleet.engine.request import (
        EngineFacts,
        EngineOptions,
        EngineStatus,
        FinishReason,
        PoolingKind,
        SampledToken,
        SequenceRequest,
        SequenceUpdate,
    )

_MODULES = {
    "Engine": "engine",
    "EngineFacts": "request",
    "EngineOptions": "request",
    "EngineStatus": "request",
    "FinishReason": "request",
    "OfflineResult": "offline",
    "PersistentKernel": "persistent",
    "PoolingKind": "request",
    "RunnableGraph": "kernel_graph",
    "SampledToken": "request",
    "SequenceRequest": "request",
    "SequenceUpdate": "request",
    "generate_offline": "offline",
    "new_kernel_graph": "kernel_graph",
}

__all__ = [
    "Engine",
    "EngineFacts",
    "EngineOptions",
    "EngineStatus",
    "FinishReason",
    "OfflineResult",
    "PersistentKernel",
    "PoolingKind",
    "RunnableGraph",
    "SampledToken",
    "SequenceRequest",
    "SequenceUpdate",
    "generate_offline",
    "new_kernel_graph",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
