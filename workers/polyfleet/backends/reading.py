"""What one probe says of one device: facts and readings together, in base units, None where the vendor withholds."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from polyfleet.backends.host import ToolResult
from polyfleet.backends.protocol import DeviceInfo, DeviceTelemetry, Health

MEBIBYTE = 1024 * 1024
WITHHELD = {"", "-", "n/a", "na", "[n/a]", "[not supported]", "not supported", "[unknown error]", "unknown", "none"}
SENTINELS = {0xFFFF, 0xFFFFFFFF, 9223372036854775794, 0xFFFFFFFFFFFFFFFF}
PRIVILEGE = re.compile(
    r"permission|not permitted|no.?perm\b|privilege|access denied|requires? root|\bas root\b|must be root|with sudo",
    re.I,
)
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReading:
    """One device as a probe found it."""

    index: int
    name: str = ""
    architecture: str = ""
    uuid: str | None = None
    pci_bus_id: str | None = None
    driver_version: str | None = None
    cores: int | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None
    utilization_ratio: float | None = None
    errors_total: int | None = None
    clock_hertz: float | None = None
    health: Health = Health.HEALTHY
    reason: str = ""

    def info(self) -> DeviceInfo:
        """The facts."""
        return DeviceInfo(
            self.index,
            self.name or "unknown",
            self.architecture or "unknown",
            self.memory_total_bytes or 0,
            self.uuid,
            self.pci_bus_id,
            self.driver_version,
            self.cores,
        )

    def telemetry(self) -> DeviceTelemetry:
        """The readings."""
        return DeviceTelemetry(
            self.index,
            self.health,
            self.reason,
            self.temperature_celsius,
            self.power_watts,
            self.utilization_ratio,
            self.memory_used_bytes,
            self.memory_total_bytes,
            self.errors_total,
            self.clock_hertz,
            self.pci_bus_id,
            self.driver_version,
        )


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """All devices that a probe found. `problem`: why it can't be trusted (hung, crashed, garbage); fail closed then."""

    readings: tuple[DeviceReading, ...] = ()
    problem: str = ""
    absent: bool = False  # the tool or library isn't there, or not for this user: ask the next probe
    warnings: tuple[str, ...] = field(default=())


def unusable(result: ToolResult) -> ProbeResult:
    """What a probe says whose tool has a problem."""
    return ProbeResult(problem=result.problem, absent=result.problem.endswith("is not installed"))


def without_devices(tool: str, result: ToolResult, problem: str) -> ProbeResult:
    """What a probe says whose tool lists nothing: `problem`, or that it withholds its devices for want of privilege."""
    refusal = next((line for line in result.output.splitlines() if PRIVILEGE.search(line)), "")
    if refusal:
        return ProbeResult(problem=f"{tool} needs more privilege here: {quoted(refusal)}", absent=True)
    return ProbeResult(problem=problem)


def quoted(line: str) -> str:
    """A tool's line as a sentence may repeat it: its first 120 characters, none of them a terminal's command."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in line.strip()[:120])


def visible(readings: Sequence[DeviceReading], variable: str | None) -> tuple[DeviceReading, ...]:
    """What a visible-device variable leaves of all devices, in its order and numbered as torch numbers them.

    Entries are indices or (beginnings of) UUIDs; None: the variable is not set. A value with anything else in it, such
    as a tile or a partition, is not understood and leaves everything.
    """
    if variable is None:
        return tuple(readings)
    entries = [entry.strip() for entry in variable.split(",") if entry.strip()]
    chosen = []
    for entry in entries if entries != ["-1"] else []:
        found = [
            r for r in readings if (str(r.index) == entry if entry.isdigit() else (r.uuid or "").startswith(entry))
        ]
        if not found and not entry.isdigit():
            return tuple(readings)
        chosen += found[:1]
    return tuple(replace(reading, index=index) for index, reading in enumerate(chosen))


def number(text: object) -> float | None:
    """The first number in a cell ("35W", "76 C", "1,024" is not read); None where the vendor withholds it."""
    if isinstance(text, int | float) and not isinstance(text, bool):
        return None if text in SENTINELS else float(text)
    cell = str(text).strip()
    found = NUMBER.search(cell)
    if cell.lower() in WITHHELD or found is None:
        return None
    digits = found.group()
    return None if digits.isdigit() and int(digits) in SENTINELS else float(digits)


def scaled(text: object, factor: float) -> float | None:
    """`number` times `factor`."""
    value = number(text)
    return None if value is None else value * factor


def count(text: object) -> int | None:
    """`number` as an integer."""
    value = number(text)
    return None if value is None else int(value)


def mebibytes(text: object) -> int | None:
    """A cell in MiB as bytes."""
    value = scaled(text, MEBIBYTE)
    return None if value is None else int(value)


def pci_address(text: str) -> str | None:
    """A PCI address with a domain of four digits, lower case; None when there is none in the text."""
    found = re.search(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])", text)
    if found is None:
        return None
    domain, bus, device, function = found.groups()
    return f"{(domain or '0000')[-4:]}:{bus}:{device}.{function}".lower()
