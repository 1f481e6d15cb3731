"""Sequences, the Batcher and Executors: the runtime that a plain Python script can drive.

Names are imported when they are first used, so that plain data (`polyfleet.engine.facts`) costs no torch.
"""

from typing import TYPE_CHECKING

from polyfleet.process.lazy import importing

if TYPE_CHECKING:
    from polyfleet.engine.embedder import Embedder
    from polyfleet.engine.engine import Engine
    from polyfleet.engine.facts import EngineFacts, EngineStatus
    from polyfleet.engine.graphs.kernel_graph import RunnableGraph, new_kernel_graph
    from polyfleet.engine.offline import OfflineResult, generate_offline
    from polyfleet.engine.persistent import PersistentKernel
    from polyfleet.wire.answers import FinishReason, SampledToken, SequenceUpdate
    from polyfleet.wire.options import EngineOptions
    from polyfleet.wire.requests import Pooling, SequenceRequest

_MODULES = {
    "Embedder": "engine.embedder",
    "Engine": "engine.engine",
    "EngineFacts": "engine.facts",
    "EngineOptions": "wire.options",
    "EngineStatus": "engine.facts",
    "FinishReason": "wire.answers",
    "OfflineResult": "engine.offline",
    "PersistentKernel": "engine.persistent",
    "Pooling": "wire.requests",
    "RunnableGraph": "engine.graphs.kernel_graph",
    "SampledToken": "wire.answers",
    "SequenceRequest": "wire.requests",
    "SequenceUpdate": "wire.answers",
    "generate_offline": "engine.offline",
    "new_kernel_graph": "engine.graphs.kernel_graph",
}

__all__ = [
    "Embedder",
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

__getattr__ = importing(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
