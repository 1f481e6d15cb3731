"""One module per accelerator behind one HardwareBackend protocol, and the registry that finds them.

from polyfleet import backends

backends.get_available_backends()      # ["cuda", "cpu"]
backends.set_backend("auto")           # remembered for this user
config = backends.auto_configure_backend()
backends.get_memory_info("cuda")
"""

from polyfleet.backends.choice import get_backend, reset_backend, set_backend
from polyfleet.backends.optimizer import BackendOptimizer, auto_configure_backend
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


def get_available_backends() -> list[BackendType]:
    """Families that can be used here, best first; third-party ones are listed by `BackendRegistry.list_available`."""
    known = {each.value: each for each in BackendType}
    return [known[name] for name in BackendRegistry.list_available() if name in known]


def get_best_device() -> str:
    """torch's name of the device that `auto` uses ("cuda:0", "cpu"). Imports torch: for worker processes."""
    return get_backend().activate()


def get_memory_info(name: str = "auto") -> MemoryInfo:
    """Memory of the backend's first device by the vendor's tool, without initialising it.

    Raises BackendUnavailable, also when the vendor withholds the numbers.
    """
    backend = get_backend(name)
    if backend.type is BackendType.CPU:
        return backend.memory()
    for reading in backend.telemetry():
        if reading.memory_total_bytes is not None and reading.memory_used_bytes is not None:
            return MemoryInfo(reading.memory_total_bytes - reading.memory_used_bytes, reading.memory_total_bytes)
    raise BackendUnavailable(f"backend {backend.type.value} does not tell its memory here")


def benchmark_backends(duration_seconds: float = 10.0, backends: list[str] | None = None) -> dict[str, object]:
    """A quick comparison of the available backends, a process each; see `polyfleet.backends.benchmark`."""
    from polyfleet.backends.benchmark import BenchmarkOptions, run

    return run(BenchmarkOptions(duration_seconds=duration_seconds), backends)
