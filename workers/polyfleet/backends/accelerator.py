"""What all accelerators share: presence by PCI vendor, probes in order, fail-closed telemetry, torch's module.

An accelerator's module states facts (vendor id, variable, libraries), parses its tools and names its capabilities; it
repeats nothing of this.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from typing import Any, ClassVar

from polyfleet.backends.host import Host, PciDevice
from polyfleet.backends.protocol import (
    Availability,
    BackendType,
    BackendUnavailable,
    CommunicationBackend,
    DeviceInfo,
    DeviceTelemetry,
    GraphApi,
    Health,
    KernelCapabilities,
    MemoryInfo,
    Named,
    accelerator_name,
)
from polyfleet.backends.reading import DeviceReading, ProbeResult, visible
from polyfleet.backends.torch_build import TorchBuild, graph_class_exists, torch_build

ERROR_MODE = "capture_error_mode"  # torch's name for whose calls break a capture


@dataclass(frozen=True, slots=True)
class Collectives:
    """An accelerator's collectives: torch.distributed's name for them and the library behind it."""

    name: str
    library: str

    def available(self) -> Availability:
        """Whether this torch could form a group; imports torch, so for worker processes."""
        import torch.distributed as distributed

        if not distributed.is_available():
            return Availability(False, "this torch was built without torch.distributed")
        if not distributed.is_backend_available(self.name):
            return Availability(False, f"this torch was built without {self.name} ({self.library})")
        return Availability(True)


@dataclass(frozen=True, slots=True)
class TorchGraphs:
    """Graph capture of a torch device module: `<Name>Graph` and `graph`."""

    module: Any
    graph_class: str

    def new_graph(self) -> Any:
        """An empty graph."""
        return getattr(self.module, self.graph_class)()

    def capture(self, graph: Any, share: Any = None) -> AbstractContextManager[Any]:
        """Record what this thread asks for.

        Where torch lets one choose, no other thread breaks that by locking pages, or by looking at events, meanwhile.
        """
        options = {} if share is None else {"pool": share.pool()}
        if ERROR_MODE in signature(self.module.graph).parameters:
            options[ERROR_MODE] = "thread_local"
        context: AbstractContextManager[Any] = self.module.graph(graph, **options)
        return context


def graphs_of(device_type: str) -> TorchGraphs:
    """Graph capture by torch's name for the kind of device, whose module holds a class named after it."""
    import torch

    return TorchGraphs(getattr(torch, device_type), f"{device_type.upper()}Graph")


class AcceleratorBackend(Named, ABC):
    """One accelerator whose devices torch reaches through a module of its own (torch.cuda, torch.xpu, torch.npu …)."""

    type: BackendType | str
    vendor: ClassVar[str]  # for sentences
    pci_vendor: ClassVar[str]
    pci_classes: ClassVar[tuple[str, ...]] = ("0x",)  # beginnings of the classes that its devices have
    torch_name: ClassVar[str]  # torch's device type and the name of its module below torch
    extension: ClassVar[str | None] = None  # module that adds it to torch
    visible_variable: ClassVar[str]
    settings: ClassVar[Mapping[str, str]] = {}  # variables that a process needs before it opens a device
    graph_class: ClassVar[str | None] = None
    collectives: ClassVar[Collectives]
    fault_command: ClassVar[tuple[str, ...]] = ()  # prints faults that its driver tells of once, see fault_events

    def __init__(self, host: Host | None = None, build: TorchBuild | None = None) -> None:
        """Tests give a described host and torch build; else they are this machine's."""
        self._host = host or Host()
        self._build = build

    @abstractmethod
    def probe(self) -> ProbeResult:
        """Ask the vendor's library or tool once, now."""

    def probe_closely(self) -> ProbeResult:
        """As probe, with readings that cost more calls; for telemetry."""
        return self.probe()

    @abstractmethod
    def missing_software(self, build: TorchBuild) -> str:
        """What this interpreter lacks to use it, as a sentence that says what to install; empty: nothing."""

    @abstractmethod
    def capabilities(self, device: DeviceInfo) -> KernelCapabilities:
        """What this very device can do."""

    def present(self) -> bool:
        """Whether the hardware is there, by files only."""
        return bool(self.pci_functions())

    def pci_functions(self) -> list[PciDevice]:
        """The vendor's PCI functions that may be devices of the accelerator: no bridge, no sound, no network card."""
        listed = self._host.pci_devices(self.pci_vendor)
        return [each for each in listed if each.pci_class.startswith(self.pci_classes)]

    def availability(self) -> Availability:
        """Hardware first, then the software that it needs."""
        if not self.present():
            return Availability(False, f"no {self.vendor} device is present (PCI vendor {self.pci_vendor})")
        if missing := self.missing_software(self._build or torch_build()):
            return Availability(False, missing)
        found = self._answer(self.probe)
        if not found.readings:
            return Availability(False, found.problem or f"no {self.vendor} tool lists a device")
        if not self._visible(found.readings):
            return Availability(False, f"{self.visible_variable} hides every {self.vendor} device")
        return Availability(True)

    def devices(self) -> tuple[DeviceInfo, ...]:
        """In PCI bus order; where the visible-device variable is set, what it leaves and in its order."""
        return tuple(each.info() for each in self._visible(self._answer(self.probe).readings)) if self.present() else ()

    def telemetry(self) -> tuple[DeviceTelemetry, ...]:
        """Fail-closed: when the probe can't be trusted, every device that PCI shows is unhealthy for that reason.

        Where PCI can't be looked at (a Mac, some containers) that is the first device.
        """
        if not self.present():
            return ()
        found = self._answer(self.probe_closely)
        readings = found.readings
        if found.problem or found.absent:
            health = Health.UNKNOWN if found.absent else Health.UNHEALTHY
            listed = self.pci_functions()
            addresses: list[str | None] = [each.address for each in listed] or [None]
            readings = tuple(
                DeviceReading(index=index, health=health, reason=found.problem, pci_bus_id=address)
                for index, address in enumerate(addresses)
            )
        return tuple(each.telemetry() for each in self._visible(readings))

    def environment(self, indices: Sequence[int]) -> dict[str, str]:
        """The visible-device variable, in the words of its present value where it is set already, and `settings`."""
        present = self._host.environ.get(self.visible_variable, "").split(",")
        entries = [entry.strip() for entry in present if entry.strip()]
        chosen = (entries[index] if index < len(entries) else str(index) for index in indices)
        return {**self.settings, self.visible_variable: ",".join(chosen)}

    def communication(self) -> CommunicationBackend:
        """The accelerator's collectives."""
        return self.collectives

    def activate(self, index: int = 0) -> str:
        """Import the extension and select the device."""
        found = self.availability()
        if not found.available:
            raise BackendUnavailable(f"backend {accelerator_name(self.type)} is not available: {found.reason}")
        for variable, value in self.settings.items():
            os.environ.setdefault(variable, value)
        if self.extension is not None:
            import_module(self.extension)
        self._module().set_device(index)
        return f"{self.torch_name}:{index}"

    def memory(self, index: int = 0) -> MemoryInfo:
        """The driver's own count, other processes included; or, where torch can't ask, what this process left."""
        module = self._module()
        try:
            free, total = module.mem_get_info(index)
        except (AttributeError, NotImplementedError):
            total = module.get_device_properties(index).total_memory
            free = total - module.memory_reserved(index)
        return MemoryInfo(int(free), int(total))

    def synchronize(self, index: int = 0) -> None:
        """Wait for the device."""
        self._module().synchronize(index)

    def graphs(self) -> GraphApi | None:
        """torch's graph class for the accelerator."""
        return TorchGraphs(self._module(), self.graph_class) if self.graph_class and self.can_capture() else None

    def can_capture(self) -> bool:
        """Whether the installed torch, or its extension, brings the accelerator's graph class."""
        package = self.extension or "torch"
        return bool(self.graph_class) and graph_class_exists(package, self.torch_name, self.graph_class or "")

    def _answer(self, probe: Callable[[], ProbeResult]) -> ProbeResult:
        """What the probe says; output that its parser did not foresee is a problem like any other."""
        try:
            return probe()
        except Exception as error:  # whatever garbage leads a parser to
            reason = f"{type(error).__name__}: {error}"[:200]
            return ProbeResult(problem=f"what {self.vendor}'s tool printed can't be understood ({reason})")

    def _visible(self, readings: Sequence[DeviceReading]) -> tuple[DeviceReading, ...]:
        return visible(readings, self._host.environ.get(self.visible_variable))

    def _module(self) -> Any:
        import torch

        return getattr(torch, self.torch_name)


def first_answer(*probes: Callable[[], ProbeResult]) -> ProbeResult:
    """The first probe that answered or failed; one whose tool is only absent lets the next speak."""
    result = ProbeResult(absent=True)
    for probe in probes:
        result = probe()
        if not result.absent:
            break
    return result
