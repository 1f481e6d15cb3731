"""Vulkan, experimental: any GPU with a Vulkan driver, through wgpu and our WGSL shaders, in float32. No torch device.

`auto` never picks it. Software devices (llvmpipe) count only when POLYFLEET_VULKAN_SOFTWARE=1.
"""

import os
from collections.abc import Sequence

from polyfleet.backends.accelerator import Collectives
from polyfleet.backends.host import Host
from polyfleet.backends.library_probe import probe_library
from polyfleet.backends.protocol import (
    Availability,
    BackendType,
    BackendUnavailable,
    CommunicationBackend,
    DeviceInfo,
    DeviceTelemetry,
    GraphApi,
    Health,
    KernelCapabilities,
    MemoryInfo,
    Named,
)
from polyfleet.backends.reading import DeviceReading, ProbeResult
from polyfleet.backends.registry import BackendRegistry
from polyfleet.backends.torch_build import installed

SOFTWARE_VARIABLE = "POLYFLEET_VULKAN_SOFTWARE"
SOFTWARE = "software"


@BackendRegistry.register(BackendType.VULKAN)
class VulkanBackend(Named):
    """Vulkan devices, asked for in a child process: creating an instance loads every driver."""

    type = BackendType.VULKAN

    def __init__(self, host: Host | None = None) -> None:
        """`host` is for tests."""
        self._host = host or Host()

    def availability(self) -> Availability:
        """wgpu, a Vulkan loader and a device."""
        if not installed("wgpu"):
            return Availability(False, "wgpu is not installed: pip install 'polyfleet[vulkan]'")
        found = self._probe()
        if not found.readings:
            return Availability(False, found.problem or "no Vulkan device: install its driver and libvulkan1")
        if not self._usable(found):
            return Availability(False, f"only a software Vulkan device is here: {SOFTWARE_VARIABLE}=1 allows it")
        return Availability(True)

    def devices(self) -> tuple[DeviceInfo, ...]:
        """Hardware devices, or the software one where it is allowed. WebGPU tells no memory size: 0."""
        return tuple(each.info() for each in self._usable(self._probe())) if installed("wgpu") else ()

    def capabilities(self, device: DeviceInfo) -> KernelCapabilities:
        """float32 only, by our own shaders; memory counts as the host's, for that is what `memory` tells."""
        return KernelCapabilities(frozenset({"float32"}), "float32", unified_memory=True, executors=("vulkan",))

    def environment(self, indices: Sequence[int]) -> dict[str, str]:
        """WebGPU has no visible-device variable."""
        return {}

    def telemetry(self) -> tuple[DeviceTelemetry, ...]:
        """Vulkan gives no readings: health is unknown, unless the probe itself fails."""
        if not installed("wgpu"):
            return ()
        found = self._probe()
        if found.problem and not found.absent:
            return (DeviceReading(index=0, health=Health.UNHEALTHY, reason=found.problem).telemetry(),)
        return tuple(each.telemetry() for each in self._usable(found))

    def communication(self) -> CommunicationBackend:
        """None between Vulkan devices; hosts can use Gloo."""
        return Collectives("gloo", "Gloo")

    def activate(self, index: int = 0) -> str:
        """There is nothing to select; the executor opens the device."""
        found = self.availability()
        if not found.available:
            raise BackendUnavailable(f"backend vulkan is not available: {found.reason}")
        return "vulkan"

    def memory(self, index: int = 0) -> MemoryInfo:
        """WebGPU can't be asked; the host's memory bounds what is tried."""
        from polyfleet.backends.cpu import CpuBackend

        return CpuBackend().memory()

    def synchronize(self, index: int = 0) -> None:
        """Reading results back waits for the device; there is nothing else to wait for."""

    def graphs(self) -> GraphApi | None:
        """None."""
        return None

    def _probe(self) -> ProbeResult:
        return probe_library(self._host, "wgpu")

    def _usable(self, found: ProbeResult) -> list[DeviceReading]:
        hardware = [each for each in found.readings if each.architecture != SOFTWARE]
        allowed = list(found.readings) if os.environ.get(SOFTWARE_VARIABLE) == "1" else []
        return hardware or allowed
