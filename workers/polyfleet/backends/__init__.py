"""One module per accelerator behind one HardwareBackend protocol, and the registry that finds them."""

from polyfleet.backends.protocol import BackendType, BackendUnavailable, DeviceInfo, HardwareBackend, KernelCapabilities
from polyfleet.backends.registry import BackendRegistry

__all__ = [
    "BackendRegistry",
    "BackendType",
    "BackendUnavailable",
    "DeviceInfo",
    "HardwareBackend",
    "KernelCapabilities",
]
