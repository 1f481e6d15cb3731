"""Devices that need not be here: what one of today's of an accelerator can do, for whoever plans for it."""

from dataclasses import replace

from polyfleet.backends.protocol import DeviceInfo, KernelCapabilities
from polyfleet.backends.registry import BackendRegistry

ARCHITECTURES: dict[str, str] = {  # of today's devices, where the architecture decides what is computed in
    "cuda": "sm_90",
    "rocm": "gfx942",
    "hygon": "gfx936",
    "ascend": "Ascend910B3",
    "cambricon": "MLU590",
}
NAMES = {"mps": "Apple"}  # where the name decides
WITH_TRITON = ("cuda", "rocm")  # whose images bring it


def imagined_capabilities(name: str, memory_bytes: int) -> KernelCapabilities:
    """Of such a device with so much memory. Raises BackendUnavailable for an accelerator that nobody knows."""
    device = DeviceInfo(0, NAMES.get(name, name), ARCHITECTURES.get(name, ""), memory_bytes)
    capabilities = BackendRegistry.known(name).capabilities(device)
    return replace(capabilities, triton=capabilities.triton or name in WITH_TRITON)
