"""The worker's own devices, read again and again on a thread: what /metrics shows, and why a worker is suspended."""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from polyfleet.backends import BackendRegistry, BackendUnavailable
from polyfleet.backends.protocol import (
    DeviceInfo,
    DeviceTelemetry,
    HardwareBackend,
    Health,
    accelerator_name,
    split_device,
)
from polyfleet.serving.health.fault_watch import FaultWatch

log = logging.getLogger(__name__)

UNHEALTHY_POLLS = 2  # running: one bad reading may be a busy driver
JOIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class DeviceState:
    """One device now. `info` is what it was known as when it could last be asked; None: never yet."""

    accelerator: str
    telemetry: DeviceTelemetry
    info: DeviceInfo | None = None
    faults: Mapping[str, int] = field(default_factory=dict)  # that its driver told of, by code


def num_devices(accelerator: str, ranks: int) -> int:
    """How many devices so many ranks take: one each, but where they share one."""
    if ranks <= 1:
        return 1
    try:
        backend = BackendRegistry.known(accelerator)
        shared = any(backend.capabilities(each).divisible for each in backend.devices()[:1])
    except Exception as error:  # a stranger's backend, or an accelerator that nobody knows
        log.warning("The devices can't be listed: %s", error)
        return ranks
    return 1 if shared else ranks


def confined(device: str, count: int = 1) -> tuple[str, dict[str, str]]:
    """The device's name in a process that sees it and the `count` - 1 behind it, and the variables that make it so.

    An accelerator without such variables keeps the name: there is one device, or the process picks among them all.
    """
    accelerator, index = split_device(device)
    try:
        variables = BackendRegistry.known(accelerator).environment(range(index, index + count))
    except BackendUnavailable:
        variables = {}
    return (accelerator, variables) if variables else (device, {})


class DeviceWatch:
    """Polls one backend for the device that has `index` there and, in a group, those behind it; `count` may change.

    Readings are from subprocesses with a time limit. A device that its tool does not list is unhealthy.
    """

    def __init__(
        self, backend: HardwareBackend, index: int, interval: float, count: Callable[[], int] = lambda: 1
    ) -> None:
        command: tuple[str, ...] = getattr(backend, "fault_command", ())
        self._faults = FaultWatch(command) if command else None
        self.states: tuple[DeviceState, ...] = ()  # empty: before the first poll
        self._backend = backend
        self._index = index
        self._interval = interval
        self._count = count
        self._unhealthy = Counter[int]()  # readings in a row, by index
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, judged: Callable[[str], None]) -> None:
        """Poll at once and then at intervals; `judged` is called on the thread with `trouble()` after each poll."""
        if self._faults is not None:
            self._faults.start()
        self._thread = threading.Thread(target=self._run, args=(judged,), name="devices", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End; a probe that is under way is left to its own time limit."""
        self._stopping.set()
        if self._faults is not None:
            self._faults.stop()
        if self._thread is not None:
            self._thread.join(JOIN_SECONDS)

    def poll(self) -> DeviceState:
        """One reading; of a group, the first device's is returned."""
        known = {each.telemetry.index: each.info for each in self.states}
        new = any(known.get(index) is None for index in self._indices())
        found = {each.index: each for each in self._list()} if new else {}
        readings = self._read()
        states = []
        for index in self._indices():
            info = known.get(index) or found.get(index)
            telemetry = self._reading(index, info, readings)
            faults = (
                self._faults.of(telemetry.pci_bus_id or (info.pci_bus_id if info else None)) if self._faults else {}
            )
            state = DeviceState(accelerator_name(self._backend.type), telemetry, info, faults)
            unhealthy = state.telemetry.health is Health.UNHEALTHY
            self._unhealthy[index] = self._unhealthy[index] + 1 if unhealthy else 0
            states.append(state)
        self.states = tuple(states)
        return self.states[0]

    def trouble(self) -> str:
        """What speaks against a device after the last poll, in one sentence; empty: nothing, or not yet."""
        for state in self.states:
            if self._unhealthy[state.telemetry.index] >= UNHEALTHY_POLLS:
                name = f"{state.accelerator} device {state.telemetry.index}"
                return f"The {name} is unhealthy: {state.telemetry.reason.rstrip('.') or 'its tool says so'}."
        return ""

    def _indices(self) -> range:
        return range(self._index, self._index + self._count())

    def _run(self, judged: Callable[[str], None]) -> None:
        while not self._stopping.is_set():
            self.poll()
            if not self._stopping.is_set():
                judged(self.trouble())
            self._stopping.wait(self._interval)

    def _list(self) -> Sequence[DeviceInfo]:
        try:
            return self._backend.devices()
        except Exception as error:  # a stranger's backend
            log.warning("The devices can't be listed: %s", error)
            return ()

    def _read(self) -> Sequence[DeviceTelemetry] | str:
        """All devices' readings, or why there are none."""
        try:
            return self._backend.telemetry()
        except Exception as error:
            return f"its probe broke: {error}"

    def _reading(
        self, index: int, info: DeviceInfo | None, readings: Sequence[DeviceTelemetry] | str
    ) -> DeviceTelemetry:
        """A device's, found by its PCI address where that is known, for its number may change."""
        if isinstance(readings, str):
            return DeviceTelemetry(index, Health.UNHEALTHY, readings)
        address = info.pci_bus_id if info else None
        for each in readings:
            found = each.pci_bus_id == address if address and each.pci_bus_id else each.index == index
            if found:
                return replace(each, index=index)
        return DeviceTelemetry(index, Health.UNHEALTHY, "its tool does not list it")
