"""Short questions that a script asks of this machine's backends; `polyfleet.backends` offers them by name."""

from polyfleet.backends.protocol import BackendType, BackendUnavailable, MemoryInfo, accelerator_name
from polyfleet.backends.registry import BackendRegistry
from polyfleet.tuning.choice import get_backend


def get_available_backends() -> list[BackendType]:
    """Accelerators to be used here, best first; third-party ones are listed by `BackendRegistry.list_available`."""
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
    raise BackendUnavailable(f"backend {accelerator_name(backend.type)} does not tell its memory here")


def benchmark_backends(duration_seconds: float = 10.0, backends: list[str] | None = None) -> dict[str, object]:
    """A quick comparison of the available backends, a process each; see `polyfleet.tuning.benchmark`."""
    from polyfleet.tuning.benchmark import BenchmarkOptions, run

    return run(BenchmarkOptions(duration_seconds=duration_seconds), backends)
