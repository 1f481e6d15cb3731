"""The worker's own device, read again and again on a thread: what /metrics shows, and why a worker is suspended."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from polyfleet.backends import BackendRegistry, BackendUnavailable
from polyfleet.backends.protocol import (
    DeviceInfo,
    DeviceTelemetry,
    HardwareBackend,
    Health,
    accelerator_name,
    split_device,
)

log = logging.getLogger(__name__)

UNHEALTHY_POLLS = 2  # running: one bad reading may be a busy driver
JOIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class DeviceState:
    """One device now. `info` is what it was known as when it could last be asked; None: never yet."""

    accelerator: str
    telemetry: DeviceTelemetry
    info: DeviceInfo | None = None


def confined(device: str) -> tuple[str, dict[str, str]]:
    """The device's name in a process that sees it alone, and the variables that make it so.

    An accelerator without such variables keeps the name: there is one device, or the process picks among them all.
    """
    accelerator, index = split_device(device)
    try:
        variables = BackendRegistry.known(accelerator).environment((index,))
    except BackendUnavailable:
        variables = {}
    return (accelerator, variables) if variables else (device, {})


class DeviceWatch:
    """Polls one backend for the device that has `index` there.

    Readings are from subprocesses with a time limit. A device that its tool does not list is unhealthy.
    """

    def __init__(self, backend: HardwareBackend, index: int, interval: float) -> None:
        self.state: DeviceState | None = None  # None: before the first poll
        self._backend = backend
        self._index = index
        self._interval = interval
        self._unhealthy = 0
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, judged: Callable[[str], None]) -> None:
        """Poll at once and then at intervals; `judged` is called on the thread with `trouble()` after each poll."""
        self._thread = threading.Thread(target=self._run, args=(judged,), name="devices", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End; a probe that is under way is left to its own time limit."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(JOIN_SECONDS)

    def poll(self) -> DeviceState:
        """One reading."""
        before = self.state
        info = (before.info if before else None) or self._describe()
        state = DeviceState(accelerator_name(self._backend.type), self._read(info), info)
        self._unhealthy = self._unhealthy + 1 if state.telemetry.health is Health.UNHEALTHY else 0
        self.state = state
        return state

    def trouble(self) -> str:
        """What speaks against the device after the last poll, in one sentence; empty: nothing, or not yet."""
        if self.state is None or self._unhealthy < UNHEALTHY_POLLS:
            return ""
        name = f"{self.state.accelerator} device {self._index}"
        return f"The {name} is unhealthy: {self.state.telemetry.reason.rstrip('.') or 'its tool says so'}."

    def _run(self, judged: Callable[[str], None]) -> None:
        while not self._stopping.is_set():
            self.poll()
            if not self._stopping.is_set():
                judged(self.trouble())
            self._stopping.wait(self._interval)

    def _describe(self) -> DeviceInfo | None:
        try:
            return next((each for each in self._backend.devices() if each.index == self._index), None)
        except Exception as error:  # a stranger's backend
            log.warning("The devices can't be listed: %s", error)
            return None

    def _read(self, info: DeviceInfo | None) -> DeviceTelemetry:
        """This device's reading, found by its PCI address where that is known, for its number may change."""
        try:
            readings = self._backend.telemetry()
        except Exception as error:
            return DeviceTelemetry(self._index, Health.UNHEALTHY, f"its probe broke: {error}")
        address = info.pci_bus_id if info else None
        for each in readings:
            found = each.pci_bus_id == address if address and each.pci_bus_id else each.index == self._index
            if found:
                return replace(each, index=self._index)
        return DeviceTelemetry(self._index, Health.UNHEALTHY, "its tool does not list it")
