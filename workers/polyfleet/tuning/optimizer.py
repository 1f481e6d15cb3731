"""BackendOptimizer: engine options for the device at hand, by template or by rule; printed, saved, loaded, applied."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polyfleet.backends.protocol import (
    BackendType,
    BackendUnavailable,
    DeviceInfo,
    HardwareBackend,
    accelerator_name,
    is_experimental,
    memory_words,
)
from polyfleet.backends.registry import BackendRegistry
from polyfleet.tuning.choice import check_choice, choice_file, get_backend, read_choice, write_choice
from polyfleet.tuning.templates import ACCELERATORS, GIB, TEMPLATES, Template, configure

LARGE_MEMORY = 24 * GIB
SMALL_MEMORY = 4 * GIB


def best_template(backend: BackendType | str, device: DeviceInfo) -> Template:
    """The rule without a purpose: by accelerator and memory, for a CPU by cores."""
    accelerator = accelerator_name(backend)
    if accelerator not in ACCELERATORS:
        return TEMPLATES["memory-constrained"]  # experimental or third-party: start small
    if backend == BackendType.CPU:
        cores = device.cores or 1
        return TEMPLATES["datacentre-cpu" if cores >= 32 else "workstation-cpu" if cores >= 8 else "inference"]
    memory = device.total_memory_bytes or 0  # 0: not told
    large = memory >= LARGE_MEMORY and not BackendType(accelerator).personal
    small = 0 < memory < SMALL_MEMORY
    site = "datacentre" if large else "edge" if small else "workstation"
    return TEMPLATES[f"{site}-{accelerator}"]


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
        return check_choice(configure(chosen, found.type, device, found.capabilities(device)))

    def apply(self, config: Mapping[str, Any]) -> Path:
        """Make it this user's choice; returns the file that holds it."""
        write_choice(choice_file(), config)
        return choice_file()

    def save_config(self, path: str | Path, backend: str = "auto", template: str = "auto") -> dict[str, Any]:
        """Optimise and write to a file."""
        config = self.optimize(backend, template)
        write_choice(Path(path), config)
        return config

    def load_config(self, path: str | Path) -> dict[str, Any]:
        """Read a file written by save_config; raises ConfigError."""
        return read_choice(Path(path))

    def system_info(self) -> dict[str, Any]:
        """Every backend with its state and devices, ready for JSON."""
        found = {name: self._describe(name) for name in BackendRegistry.names()}
        usable = (name for name in found if not is_experimental(name))
        default = next((name for name in usable if found[name]["available"]), "")
        return {"default": default, "backends": found}

    def print_system_info(self) -> None:
        """The same, a line a device, for a plain terminal."""
        info = self.system_info()
        for name, facts in info["backends"].items():
            mark = "*" if name == info["default"] else " "
            print(f"{mark} {name:<10} {facts['reason'] or 'available'}")
            for device in facts["devices"]:
                memory = memory_words(device["total_memory_bytes"])
                print(f"    {device['index']}: {device['name']} ({device['architecture']}), {memory}")

    def _describe(self, name: str) -> dict[str, Any]:
        try:
            backend = BackendRegistry.get(name)
            devices = [self._describe_device(backend, device) for device in backend.devices()]
        except BackendUnavailable as error:
            reason = str(error).removeprefix(f"backend {name} is not available: ")
            return {"available": False, "reason": reason, "devices": []}
        except Exception as error:  # a stranger's backend must not hide the others
            return {"available": False, "reason": f"it broke while it was probed: {error}", "devices": []}
        return {"available": True, "reason": "", "devices": devices}

    def _describe_device(self, backend: HardwareBackend, device: DeviceInfo) -> dict[str, Any]:
        capabilities = backend.capabilities(device)
        return {
            "index": device.index,
            "name": device.name,
            "architecture": device.architecture,
            "total_memory_bytes": device.total_memory_bytes,
            "cores": device.cores,
            "pci_bus_id": device.pci_bus_id,
            "driver_version": device.driver_version,
            "dtypes": sorted(capabilities.dtypes),
            "preferred_dtype": capabilities.preferred_dtype,
            "instruction_sets": list(capabilities.instruction_sets),
        }

    def _first_device(self, backend: HardwareBackend) -> DeviceInfo:
        devices = backend.devices()
        if not devices:
            raise ValueError(
                f"backend {accelerator_name(backend.type)} lists no device now: try `polyfleet backends info`"
            )
        return devices[0]


def auto_configure_backend() -> dict[str, Any]:
    """The best configuration for this machine; its key `backend` names the backend."""
    return BackendOptimizer().optimize()
