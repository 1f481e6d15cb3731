"""Faults that a driver tells of once and never again: `python -m polyfleet.backends.fault_events` prints each as JSON.

For NVIDIA, through NVML's events: XID errors, by PCI address. A child process of its own, which ends with its parent
and, where nobody tells of such faults, at once with status 0.
"""

import importlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from polyfleet.backends.reading import pci_address

WAIT_MILLISECONDS = 1000


def fault_lines(nvml: Any, parent: int) -> Iterator[str]:
    """One for each event, for as long as `parent` is this process's; none where no card tells of events."""
    nvml.nvmlInit()
    events, listening = nvml.nvmlEventSetCreate(), False
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
            listening = True
        except nvml.NVMLError:  # this card has none, or is lost already; the others may tell
            continue
    while listening and os.getppid() == parent:
        try:
            event = nvml.nvmlEventSetWait_v2(events, WAIT_MILLISECONDS)
        except nvml.NVMLError_Timeout:
            continue
        address = nvml.nvmlDeviceGetPciInfo(event.device).busId
        text = address.decode() if isinstance(address, bytes) else address
        yield json.dumps({"pci_bus_id": pci_address(text), "code": f"XID {event.eventData}"})


def main() -> None:
    """Print them as they come."""
    try:
        pynvml = importlib.import_module("pynvml")
    except ImportError:
        return
    for line in fault_lines(pynvml, os.getppid()):
        print(line, flush=True)


if __name__ == "__main__":
    try:
        main()
    except Exception as error:  # the library's own classes
        sys.exit(f"Faults can't be heard: {error}")
