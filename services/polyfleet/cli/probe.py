"""Finds devices and operators and prints them as JSON. `polyfleet info` runs it as a process with a time limit."""

import json
import sys
from typing import Any


def accelerators() -> list[dict[str, Any]]:
    """Every backend: available or why not, and its devices with their capabilities."""
    from polyfleet.backends import BackendRegistry

    default = BackendRegistry.get_default().type.value
    found = []
    for name in BackendRegistry.names():
        backend = BackendRegistry.known(name)
        state = backend.availability()
        devices = []
        for device in backend.devices() if state.available else ():
            capabilities = backend.capabilities(device)
            devices.append(
                {
                    "index": device.index,
                    "name": device.name,
                    "architecture": device.architecture,
                    "total_memory_bytes": device.total_memory_bytes,
                    "cores": device.cores,
                    "preferred_dtype": capabilities.preferred_dtype,
                    "instruction_sets": list(capabilities.instruction_sets),
                }
            )
        found.append({"name": name, "reason": state.reason, "default": name == default, "devices": devices})
    return found


def operators() -> dict[str, str]:
    """Which implementation would run each operator on the default device, in the dtype that it prefers."""
    import torch

    from polyfleet.backends import BackendRegistry
    from polyfleet.engine.executors import DTYPES, kernel_facts
    from polyfleet.kernels.dispatch import Target, choose
    from polyfleet.kernels.table import implementations

    backend = BackendRegistry.get_default()
    capabilities = backend.capabilities(backend.devices()[0])
    device_type = torch.device(backend.activate()).type
    target = Target(device_type, DTYPES[capabilities.preferred_dtype], kernel_facts(capabilities))
    return {op.value: each.name for op, each in choose(implementations(), target).items()}


def main() -> None:
    """Print one JSON object."""
    facts: dict[str, Any] = {"accelerators": [], "operators": {}, "problem": ""}
    try:
        facts["accelerators"] = accelerators()
        facts["operators"] = operators()
    except Exception as error:  # whatever a driver may throw: the report is about just that
        facts["problem"] = f"{type(error).__name__}: {error}"
    json.dump(facts, sys.stdout)


if __name__ == "__main__":
    main()
