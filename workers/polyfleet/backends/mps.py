"""Apple MPS: one device with unified memory, on a macOS host; macOS's own tools for facts, torch.mps for running."""

import json
import re
from collections.abc import Sequence
from typing import Any, ClassVar

from polyfleet.backends.accelerator import AcceleratorBackend, Collectives
from polyfleet.backends.host import TOOL_TIMEOUT_SECONDS, ToolResult
from polyfleet.backends.protocol import BackendType, BackendUnavailable, DeviceInfo, KernelCapabilities, MemoryInfo
from polyfleet.backends.reading import DeviceReading, ProbeResult, count, scaled
from polyfleet.backends.registry import BackendRegistry
from polyfleet.backends.torch_build import TorchBuild


@BackendRegistry.register(BackendType.MPS)
class MpsBackend(AcceleratorBackend):
    """Apple silicon. No containers, no visible-device variable, no collectives of its own."""

    type = BackendType.MPS
    vendor = "Apple"
    pci_vendor = "0x106b"
    torch_name = "mps"
    visible_variable = ""
    collectives: ClassVar[Collectives] = Collectives("gloo", "Gloo")

    def present(self) -> bool:
        """Any macOS; the probe tells whether it has Metal."""
        return self._host.platform == "darwin"

    def missing_software(self, build: TorchBuild) -> str:
        """Any torch of macOS."""
        return "" if build.version else "this is a Mac, but torch is not installed: pip install torch"

    def probe(self) -> ProbeResult:
        """system_profiler and sysctl for facts, ioreg for readings; power needs root and stays unknown."""
        displays = self._run("system_profiler", "SPDisplaysDataType", "-json")
        memory, readings = self._run("sysctl", "-n", "hw.memsize"), self._run(*IOREG)
        if hung := displays.problem or memory.problem or readings.problem:
            return ProbeResult(problem=hung)
        return parse_profile(displays, memory.output, readings.output)

    def environment(self, indices: Sequence[int]) -> dict[str, str]:
        """None: there is one device."""
        return {}

    def capabilities(self, device: DeviceInfo) -> KernelCapabilities:
        """No fp64 and no fp8; bf16 on Apple silicon only."""
        silicon = device.name.startswith("Apple")
        return KernelCapabilities(
            dtypes=frozenset({"float32", "float16", "int8"} | ({"bfloat16"} if silicon else set())),
            preferred_dtype="float16",
            unified_memory=True,
        )

    def activate(self, index: int = 0) -> str:
        """There is nothing to select."""
        found = self.availability()
        if not found.available:
            raise BackendUnavailable(f"backend mps is not available: {found.reason}")
        return "mps"

    def memory(self, index: int = 0) -> MemoryInfo:
        """What Metal recommends as the most, less what this process has: all of unified memory is never promised."""
        module = self._module()
        total = int(module.recommended_max_memory())
        return MemoryInfo(max(0, total - int(module.driver_allocated_memory())), total)

    def synchronize(self, index: int = 0) -> None:
        """Wait for the default stream, the only one."""
        self._module().synchronize()

    def _run(self, *command: str) -> ToolResult:
        return self._host.run(command, TOOL_TIMEOUT_SECONDS)


IOREG = ("ioreg", "-r", "-d", "1", "-w", "0", "-c", "IOAccelerator")


def parse_profile(displays: ToolResult, memory_size: str, ioreg: str) -> ProbeResult:
    """The first Metal device of `system_profiler SPDisplaysDataType -json`."""
    try:
        listed: list[dict[str, Any]] = json.loads(displays.output)["SPDisplaysDataType"]
        metal = [each for each in listed if "metal" in str(each.get("spdisplays_mtlgpufamilysupport", ""))]
    except (ValueError, KeyError, TypeError, AttributeError):
        return ProbeResult(problem="system_profiler printed no list of displays")
    if not metal:
        return ProbeResult(problem="this Mac has no Metal device")
    used = re.search(r'"In use system memory"=(\d+)', ioreg)  # with the quote: not its "(driver)" twin
    load = re.search(r'"Device Utilization %"=(\d+)', ioreg)
    reading = DeviceReading(
        index=0,
        name=str(metal[0].get("sppci_model", "Apple GPU")),
        architecture=str(metal[0]["spdisplays_mtlgpufamilysupport"]).removeprefix("spdisplays_"),
        cores=count(metal[0].get("sppci_cores", "")),
        memory_total_bytes=count(memory_size),
        memory_used_bytes=int(used.group(1)) if used else None,
        utilization_ratio=scaled(load.group(1), 0.01) if load else None,
    )
    return ProbeResult((reading,))
