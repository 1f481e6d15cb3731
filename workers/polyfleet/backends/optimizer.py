"""BackendOptimizer: engine options for the device at hand, by template or by rule; printed, saved, loaded, applied."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polyfleet.backends.choice import check_config, choice_file, get_backend, read_config, write_config
from polyfleet.backends.protocol import BackendType, BackendUnavailable, DeviceInfo, HardwareBackend
from polyfleet.backends.registry import BackendRegistry
from polyfleet.backends.templates import GIB, TEMPLATES, Template, configure

LARGE_MEMORY = 24 * GIB
SMALL_MEMORY = 4 * GIB


def best_template(backend: BackendType, device: DeviceInfo) -> Template:
    """The rule without a purpose: by family and memory, for a CPU by cores."""
    if backend.value not in ("cuda", "rocm", "hygon", "ascend", "cambricon", "xpu", "mps", "cpu"):
        return TEMPLATES["memory-constrained"]  # experimental or third-party: start small
    if backend is BackendType.CPU:
        cores = device.cores or 1
        site = "datacentre" if cores >= 32 else "workstation" if cores >= 8 else "edge"
        return TEMPLATES["inference"] if cores < 8 else TEMPLATES[f"{site}-cpu"]
    large = device.total_memory_bytes >= LARGE_MEMORY and backend is not BackendType.MPS
    small = 0 < device.total_memory_bytes < SMALL_MEMORY
    site = "datacentre" if large else "edge" if small else "workstation"
    return TEMPLATES[f"{site}-{backend.value}"]


class BackendOptimizer:
    """Chooses options for a backend; "auto" is accepted wherever a backend or template is named."""

    def optimize(self, backend: str = "auto", template: str = "auto") -> dict[str, Any]:
        """A configuration for the backend's first device. Raises BackendUnavailable, or ValueError for a template."""
        found = get_backend(backend)
        device = self._first_device(found)
        if template == "auto":
            chosen = best_template(found.type, device)
        elif template in TEMPLATES:
            chosen = TEMPLATES[template]
        else:
            raise ValueError(f"there is no template {template!r}: choose auto or one of {', '.join(TEMPLATES)}")
        return check_config(configure(chosen, found.type, device, found.capabilities(device)))

    def apply(self, config: Mapping[str, Any]) -> Path:
        """Make it this user's choice; returns the file that holds it."""
        write_config(choice_file(), config)
        return choice_file()

    def save_config(self, path: str | Path, backend: str = "auto", template: str = "auto") -> dict[str, Any]:
        """Optimise and write to a file."""
        config = self.optimize(backend, template)
        write_config(Path(path), config)
        return config

    def load_config(self, path: str | Path) -> dict[str, Any]:
        """Read a file written by save_config; raises ConfigError."""
        return read_config(Path(path))

    def system_info(self) -> dict[str, Any]:
        """Every backend with its state and devices, ready for JSON."""
        default = BackendRegistry.get_default().type.value
        return {
            "default": default,
            "backends": {name: self._describe(name) for name in BackendRegistry.names()},
        }

    def print_system_info(self) -> None:
        """The same, a line a device, for a plain terminal."""
        info = self.system_info()
        for name, facts in info["backends"].items():
            mark = "*" if name == info["default"] else " "
            print(f"{mark} {name:<10} {facts['reason'] or 'available'}")
            for device in facts["devices"]:
                memory = f"{device['total_memory_bytes'] / GIB:.1f} GiB"
                print(f"    {device['index']}: {device['name']} ({device['architecture']}), {memory}")

    def _describe(self, name: str) -> dict[str, Any]:
        try:
            backend = BackendRegistry.known(name)
        except BackendUnavailable as error:
            return {"available": False, "reason": str(error), "devices": []}
        state = backend.availability()
        devices = [
            {
                "index": device.index,
                "name": device.name,
                "architecture": device.architecture,
                "total_memory_bytes": device.total_memory_bytes,
                "cores": device.cores,
                "pci_bus_id": device.pci_bus_id,
                "driver_version": device.driver_version,
                "dtypes": sorted(backend.capabilities(device).dtypes),
                "preferred_dtype": backend.capabilities(device).preferred_dtype,
            }
            for device in (backend.devices() if state.available else ())
        ]
        return {"available": state.available, "reason": state.reason, "devices": devices}

    def _first_device(self, backend: HardwareBackend) -> DeviceInfo:
        devices = backend.devices()
        if not devices:
            raise ValueError(f"backend {backend.type.value} lists no device now: try `polyfleet backends info`")
        return devices[0]


def auto_configure_backend() -> dict[str, Any]:
    """The best configuration for this machine; its key `backend` names the backend."""
    return BackendOptimizer().optimize()
