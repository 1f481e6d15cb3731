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
    from polyfleet.engine.request import EngineFacts, EngineOptions, EngineStatus
    from polyfleet.wire.answers import FinishReason, SampledToken, SequenceUpdate
    from polyfleet.wire.requests import Pooling, SequenceRequest

_MODULES = {
    "Engine": "polyfleet.engine.engine",
    "EngineFacts": "polyfleet.engine.request",
    "EngineOptions": "polyfleet.engine.request",
    "EngineStatus": "polyfleet.engine.request",
    "FinishReason": "polyfleet.wire.answers",
    "OfflineResult": "polyfleet.engine.offline",
    "PersistentKernel": "polyfleet.engine.persistent",
    "Pooling": "polyfleet.wire.requests",
    "RunnableGraph": "polyfleet.engine.kernel_graph",
    "SampledToken": "polyfleet.wire.answers",
    "SequenceRequest": "polyfleet.wire.requests",
    "SequenceUpdate": "polyfleet.wire.answers",
    "generate_offline": "polyfleet.engine.offline",
    "new_kernel_graph": "polyfleet.engine.kernel_graph",
}

__all__ = [
    "Engine",
    "EngineFacts",
    "EngineOptions",
    "EngineStatus",
    "FinishReason",
    "OfflineResult",
    "PersistentKernel",
    "Pooling",
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
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
