"""Finds devices and operators and prints them as JSON. `polyfleet info` runs it as a process with a time limit."""

import json
import sys
from typing import Any


def accelerators() -> list[dict[str, Any]]:
    """Every backend: available or why not, and its devices with their capabilities."""
    from polyfleet.backends import BackendOptimizer

    facts = BackendOptimizer().system_info()
    return [
        {"name": name, "reason": found["reason"], "default": name == facts["default"], "devices": found["devices"]}
        for name, found in facts["backends"].items()
    ]


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
