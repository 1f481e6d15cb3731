"""The CPU: always there; cores and memory as the container allows them, not as the machine has them."""

import os
import platform
from collections.abc import Sequence
from math import ceil
from pathlib import Path

from polyfleet.backends.cgroup import cpu_quota, memory_limits
from polyfleet.backends.protocol import (
    Availability,
    BackendType,
    CommunicationBackend,
    DeviceInfo,
    DeviceTelemetry,
    GraphApi,
    Health,
    KernelCapabilities,
    MemoryInfo,
    Named,
)
from polyfleet.backends.registry import BackendRegistry

SHOWN_FLAGS = ("avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")
SHOWN_FLAGS_ARM = ("asimd", "asimddp", "i8mm", "bf16", "sve")


class GlooCommunication:
    """Collectives between CPU processes."""

    name = "gloo"
    library = "Gloo"

    def available(self) -> Availability:
        """torch's own build answers."""
        import torch.distributed

        if torch.distributed.is_available():
            return Availability(True)
        return Availability(False, "this torch was built without torch.distributed")


@BackendRegistry.register(BackendType.CPU)
class CpuBackend(Named):
    """One device: all cores that this process may use."""

    type = BackendType.CPU

    def __init__(self, root: Path = Path("/")) -> None:
        """`root` is where /proc and /sys are looked for, for tests."""
        self._root = root

    def availability(self) -> Availability:
        """Always available."""
        return Availability(True)

    def devices(self) -> tuple[DeviceInfo, ...]:
        """The one CPU device; `cores` follow affinity and cgroup limits."""
        flags = "+".join((platform.machine(), *self.instruction_sets()))
        total = self.memory().total_bytes
        return (DeviceInfo(0, self._model_name(), flags, total, cores=usable_cores(self._root)),)

    def capabilities(self, device: DeviceInfo) -> KernelCapabilities:
        """bfloat16 counts as a computing type everywhere, and is preferred only where the CPU multiplies it."""
        fast_bfloat16 = {"avx512_bf16", "amx_bf16", "bf16"} & set(self.instruction_sets())
        return KernelCapabilities(
            dtypes=frozenset({"float32", "float64", "bfloat16", "float16", "int8"}),
            preferred_dtype="bfloat16" if fast_bfloat16 else "float32",
            instruction_sets=self.instruction_sets(),
            divisible=True,
            executors=("persistent", "eager"),
        )

    def environment(self, indices: Sequence[int]) -> dict[str, str]:
        """As many OpenMP threads as usable cores."""
        return {"OMP_NUM_THREADS": str(usable_cores(self._root))}

    def telemetry(self) -> tuple[DeviceTelemetry, ...]:
        """Memory and load; temperature and power are not readable without privileges and stay unknown."""
        memory = self.memory()
        load = min(1.0, os.getloadavg()[0] / usable_cores(self._root))
        used = memory.total_bytes - memory.free_bytes
        reading = DeviceTelemetry(
            0, Health.HEALTHY, utilization_ratio=load, memory_used_bytes=used, memory_total_bytes=memory.total_bytes
        )
        return (reading,)

    def communication(self) -> CommunicationBackend:
        """Gloo."""
        return GlooCommunication()

    def activate(self, index: int = 0) -> str:
        """Nothing to import."""
        return "cpu"

    def memory(self, index: int = 0) -> MemoryInfo:
        """What the machine has available, capped by the limits of the cgroups."""
        host = self._meminfo()
        total, free = host.get("MemTotal", 0), host.get("MemAvailable", 0)
        for limit, used in memory_limits(self._root):
            total, free = min(total, limit), min(free, max(0, limit - used))
        return MemoryInfo(free, total)

    def synchronize(self, index: int = 0) -> None:
        """Work on the CPU is done when the call returns."""

    def graphs(self) -> GraphApi | None:
        """No graph capture."""
        return None

    def instruction_sets(self) -> tuple[str, ...]:
        """The instruction sets that kernels choose by, as Linux names them; empty elsewhere."""
        text = self._read("proc/cpuinfo")
        lines = (line.partition(":")[2].split() for line in text.splitlines() if line.startswith(("flags", "Features")))
        present = set(next(lines, ()))
        return tuple(flag for flag in (*SHOWN_FLAGS, *SHOWN_FLAGS_ARM) if flag in present)

    def _model_name(self) -> str:
        for line in self._read("proc/cpuinfo").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
        return platform.processor() or platform.machine()

    def _meminfo(self) -> dict[str, int]:
        fields = (line.split() for line in self._read("proc/meminfo").splitlines())
        return {each[0].rstrip(":"): int(each[1]) * 1024 for each in fields if len(each) == 3 and each[1].isdigit()}

    def _read(self, path: str) -> str:
        try:
            return (self._root / path).read_text()
        except OSError:
            return ""


def usable_cores(root: Path = Path("/")) -> int:
    """Cores that this process may use: affinity mask, capped by the cgroup's CPU quota (rounded up), at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota(root)
    return cores if quota is None else max(1, min(cores, ceil(quota)))
