"""What every accelerator answers: is it here, what is it, how is it run. No torch is imported by this module.

A backend never lies and never throws while probing: absent hardware is an Availability with the reason in words.
Methods up to `capabilities` are safe in any process: they read files and vendor tools, and initialise no device.
The others are for the worker process that has called `activate`.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum, unique
from typing import Any, Protocol


@unique
class BackendType(str, Enum):
    """The accelerators, in the order in which `auto` prefers them; experimental ones are never picked."""

    CUDA = "cuda"
    ROCM = "rocm"
    HYGON = "hygon"
    ASCEND = "ascend"
    CAMBRICON = "cambricon"
    XPU = "xpu"
    MPS = "mps"
    CPU = "cpu"
    VULKAN = "vulkan"

    @property
    def experimental(self) -> bool:
        """Whether it must be asked for by name."""
        return self is BackendType.VULKAN

    @property
    def personal(self) -> bool:
        """Whether its machines stand on desks, never in a datacentre."""
        return self is BackendType.MPS


def accelerator_name(accelerator: "BackendType | str") -> str:
    """An accelerator as text. A third party's backend has a name of its own and no member in BackendType.

    Raises ValueError for what is neither.
    """
    if not isinstance(accelerator, str):
        raise ValueError(f"a backend is named by a text or a BackendType, not by {accelerator!r}")
    return accelerator.value if isinstance(accelerator, BackendType) else accelerator


def split_device(device: str) -> tuple[str, int]:
    """A device's name, as `cuda:1`, as its accelerator's name and its index, which is 0 where none is given."""
    accelerator, _, index = device.partition(":")
    return accelerator, int(index) if index.isascii() and index.isdigit() and len(index) < 10 else 0


def is_experimental(name: str) -> bool:
    """Whether the accelerator of this name must be asked for by it."""
    return any(each.experimental and each.value == name for each in BackendType)


class BackendUnavailable(RuntimeError):
    """The backend that was asked for is absent; the message says why and what to install."""


class UnknownBackend(BackendUnavailable):
    """No backend has the name that was asked for; the message lists those there are."""


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a backend can be used here, and if not, why and what would help, in words."""

    available: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One physical unit. None is a fact that the vendor withholds, never zero."""

    index: int  # position in PCI bus order; what the visible-device variable and torch use
    name: str
    architecture: str  # sm_90, gfx942, Ascend910B3, x86_64+avx2 …
    total_memory_bytes: int | None  # of its own; None: not told, as where it is the host's
    uuid: str | None = None
    pci_bus_id: str | None = None  # domain of four digits: 0000:03:00.0
    driver_version: str | None = None
    cores: int | None = None  # multiprocessors, compute units, AI cores, CPU cores

    @property
    def total_memory_gb(self) -> float | None:
        """Memory in units of 2^30 bytes."""
        return self.total_memory_bytes / 2**30 if self.total_memory_bytes else None


def memory_words(total_bytes: int | None) -> str:
    """A device's memory for people."""
    return f"{total_bytes / 2**30:.1f} GiB" if total_bytes else "memory unknown"


@dataclass(frozen=True, slots=True)
class KernelCapabilities:
    """Facts of one device that kernels and executors choose by."""

    dtypes: frozenset[str]  # computing types: float32, float16, bfloat16, float64, int8, float8_e4m3fn …
    preferred_dtype: str
    graph_capture: bool = False
    streams: bool = False
    triton: bool = False
    flash_attention: bool = False
    block_sizes: tuple[int, ...] = ()  # KV blocks that its kernels accept; empty: any
    unified_memory: bool = False  # whether its memory is the host's
    divisible: bool = False  # whether several ranks may have a part of it each, of its cores and its memory
    peer_memory: bool = False  # whether kernels read the memory of its neighbours, which other processes have opened
    executors: tuple[str, ...] = ("eager",)  # that run on it, best first; without "eager" it is no device of torch's
    instruction_sets: tuple[str, ...] = ()

    @property
    def supports_flash_attention(self) -> bool:
        """Whether a fused attention kernel exists for it."""
        return self.flash_attention


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Bytes of one device; on a CPU, of the container or machine."""

    free_bytes: int
    total_bytes: int


@unique
class Health(str, Enum):
    """Fail-closed: a probe that hangs, crashes or reports an error is UNHEALTHY; a withheld reading is UNKNOWN."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"


THROTTLE_REASONS = ("power_cap", "thermal", "power_brake", "hardware", "clock_limit")
"""Why a device computes at a lower clock: its power limit, heat, a signal of the power supply, another reason of the
hardware's own, clocks that somebody set. Idleness is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStrain:
    """What wears, slows or cuts off a device. None: the vendor does not tell."""

    corrected_errors_total: int | None = None  # of memory, corrected by ECC
    remapped_rows: int | None = None  # rows or pages of memory that are used no more
    remap_pending: bool | None = None  # more of them are to follow at the next reset
    throttle_reasons: tuple[str, ...] | None = None  # of THROTTLE_REASONS, those that hold now
    pcie_generation: int | None = None  # now; it falls while the device is idle
    pcie_lanes: int | None = None  # now
    pcie_max_lanes: int | None = None  # of device and slot
    links_up: int | None = None  # direct links to neighbours (NVLink)
    links_down: int | None = None


NO_STRAIN = DeviceStrain()  # a vendor that tells nothing


@dataclass(frozen=True, slots=True)
class DeviceTelemetry:
    """Readings of one device now. None: the vendor withholds it (no privilege, N/A); it is shown as unknown."""

    index: int
    health: Health
    reason: str = ""
    temperature_celsius: float | None = None
    power_watts: float | None = None
    utilization_ratio: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    errors_total: int | None = None  # uncorrected ECC or the accelerator's nearest count
    clock_hertz: float | None = None
    pci_bus_id: str | None = None
    driver_version: str | None = None
    strain: DeviceStrain = NO_STRAIN


class CommunicationBackend(Protocol):
    """Collectives between devices of one accelerator."""

    @property
    def name(self) -> str:
        """The torch.distributed backend: nccl, gloo, xccl, hccl, cncl."""
        ...

    @property
    def library(self) -> str:
        """What does the work: NCCL, RCCL, HCCL …"""
        ...

    def available(self) -> Availability:
        """Whether this process could form a group."""
        ...


class GraphApi(Protocol):
    """Capture and replay of device work."""

    def capture(self, graph: Any, share: Any = None) -> AbstractContextManager[Any]:
        """Record what runs inside the context into `graph`; it takes its memory from where the graph `share` has its.

        Graphs that share memory are never replayed at once.
        """
        ...

    def new_graph(self) -> Any:
        """An empty graph with a `replay()` method."""
        ...


class Named:
    """A backend by its accelerator's name."""

    type: BackendType | str

    @property
    def value(self) -> str:
        """The name, as a member of BackendType has it."""
        return accelerator_name(self.type)


class HardwareBackend(Protocol):
    """One accelerator."""

    @property
    def type(self) -> BackendType | str:
        """Its accelerator; a third party's is its entry point's name."""
        ...

    @property
    def value(self) -> str:
        """The accelerator's name; `Named` has it."""
        ...

    def availability(self) -> Availability:
        """Whether it can be used here. Never raises, initialises nothing, takes under two seconds."""
        ...

    def devices(self) -> tuple[DeviceInfo, ...]:
        """Its devices in PCI bus order; empty when unavailable."""
        ...

    def capabilities(self, device: DeviceInfo) -> KernelCapabilities:
        """What this very device can do."""
        ...

    def environment(self, indices: Sequence[int]) -> dict[str, str]:
        """Variables for a worker process that shall see only these devices; set before torch is imported."""
        ...

    def telemetry(self) -> tuple[DeviceTelemetry, ...]:
        """Readings of the same devices, from a subprocess with a time limit. Never raises."""
        ...

    def communication(self) -> CommunicationBackend:
        """The accelerator's collectives."""
        ...

    def activate(self, index: int = 0) -> str:
        """Import what torch needs and select the device; returns torch's name for it ("cuda:0", "npu:0", "cpu").

        For worker processes only. Raises BackendUnavailable.
        """
        ...

    def memory(self, index: int = 0) -> MemoryInfo:
        """Free and total memory of an activated device."""
        ...

    def synchronize(self, index: int = 0) -> None:
        """Wait for all work of an activated device."""
        ...

    def graphs(self) -> GraphApi | None:
        """Graph capture of an activated device; None where the accelerator has none."""
        ...
