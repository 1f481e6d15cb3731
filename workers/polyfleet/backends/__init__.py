"""One module per accelerator behind one HardwareBackend protocol, and the registry that finds them.

from polyfleet import backends

backends.get_available_backends()      # ["cuda", "cpu"]
backends.set_backend("auto")           # remembered for this user
config = backends.auto_configure_backend()
backends.get_memory_info("cuda")

Names are imported when they are first used, so that importing this package costs next to nothing. What a script asks of
its backends is answered by `polyfleet.tuning`, on which nothing in this package depends.
"""

from polyfleet.process.lazy import importing

TYPE_CHECKING = False  # type checkers take it for true; typing's own would cost more than all the rest of this module
if TYPE_CHECKING:
    from polyfleet.backends.protocol import (
        BackendType,
        BackendUnavailable,
        CommunicationBackend,
        DeviceInfo,
        HardwareBackend,
        KernelCapabilities,
        MemoryInfo,
    )
    from polyfleet.backends.registry import BackendRegistry
    from polyfleet.tuning.choice import get_backend, reset_backend, set_backend
    from polyfleet.tuning.optimizer import BackendOptimizer, auto_configure_backend
    from polyfleet.tuning.questions import (
        benchmark_backends,
        get_available_backends,
        get_best_device,
        get_memory_info,
    )

_MODULES = {
    "BackendOptimizer": "tuning.optimizer",
    "BackendRegistry": "backends.registry",
    "BackendType": "backends.protocol",
    "BackendUnavailable": "backends.protocol",
    "CommunicationBackend": "backends.protocol",
    "DeviceInfo": "backends.protocol",
    "HardwareBackend": "backends.protocol",
    "KernelCapabilities": "backends.protocol",
    "MemoryInfo": "backends.protocol",
    "auto_configure_backend": "tuning.optimizer",
    "benchmark_backends": "tuning.questions",
    "get_available_backends": "tuning.questions",
    "get_backend": "tuning.choice",
    "get_best_device": "tuning.questions",
    "get_memory_info": "tuning.questions",
    "reset_backend": "tuning.choice",
    "set_backend": "tuning.choice",
}

__all__ = [
    "BackendOptimizer",
    "BackendRegistry",
    "BackendType",
    "BackendUnavailable",
    "CommunicationBackend",
    "DeviceInfo",
    "HardwareBackend",
    "KernelCapabilities",
    "MemoryInfo",
    "auto_configure_backend",
    "benchmark_backends",
    "get_available_backends",
    "get_backend",
    "get_best_device",
    "get_memory_info",
    "reset_backend",
    "set_backend",
]

__getattr__ = importing(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
