"""What one probe says of one device: facts and readings together, in base units, None where the vendor withholds."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from polyfleet.backends.host import ToolResult
from polyfleet.backends.protocol import NO_STRAIN, DeviceInfo, DeviceStrain, DeviceTelemetry, Health

MEBIBYTE = 1024 * 1024
WITHHELD = {"", "-", "n/a", "na", "[n/a]", "[not supported]", "not supported", "[unknown error]", "unknown", "none"}
SENTINELS = {0xFFFF, 0xFFFFFFFF, 9223372036854775794, 0xFFFFFFFFFFFFFFFF}
PRIVILEGE = re.compile(
    r"permission|not permitted|no.?perm\b|privilege|access denied|requires? root|\bas root\b|must be root|with sudo",
    re.I,
)
COMMA = re.compile(r"\d,\d")
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
    strain: DeviceStrain = NO_STRAIN
    partitions: tuple["DeviceReading", ...] = ()  # that have names of their own, such as MIG's

    def info(self) -> DeviceInfo:
        """The facts."""
        return DeviceInfo(
            self.index,
            self.name or "unknown",
            self.architecture or "unknown",
            self.memory_total_bytes,
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
            self.strain,
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

    Entries are indices, (beginnings of) UUIDs, partitions (MIG-…) or tiles (0.1); None: the variable is not set. As for
    the drivers, the first entry that names nothing ends the list.
    """
    if variable is None:
        return tuple(readings)
    chosen: list[DeviceReading] = []
    for entry in (entry.strip() for entry in variable.split(",") if entry.strip()):
        found = _named(readings, entry)
        if found is None:
            break
        chosen.append(replace(found, index=len(chosen)))
    return tuple(chosen)


def _named(readings: Sequence[DeviceReading], entry: str) -> DeviceReading | None:
    """The device, or the part of one, that an entry of a visible-device variable names."""
    if entry.isdecimal():
        return next((each for each in readings if str(each.index) == entry), None)
    if tile := re.fullmatch(r"(\d+)\.(\d+)", entry):
        whole = _named(readings, tile[1])
        return whole and part_of(whole, f"tile {tile[2]}")
    if old := re.fullmatch(r"MIG-(GPU-[^/]+)/(\d+)/(\d+)", entry):
        whole = _named(readings, old[1])
        return whole and part_of(whole, f"MIG {old[2]}/{old[3]}", entry)
    for each in (*readings, *(part for whole in readings for part in whole.partitions)):
        if (each.uuid or "").startswith(entry):
            return each
    if entry.startswith("MIG-"):
        reason = "its tool does not list its partitions"
        return DeviceReading(index=0, name="MIG device", uuid=entry, health=Health.UNKNOWN, reason=reason)
    return None


def part_of(whole: DeviceReading, name: str, uuid: str | None = None) -> DeviceReading:
    """A partition or tile: what it shares with its device; its memory and load are its own, and not known here."""
    return replace(
        whole,
        name=f"{whole.name} {name}",
        uuid=uuid or whole.uuid,
        memory_total_bytes=None,
        memory_used_bytes=None,
        utilization_ratio=None,
        partitions=(),
    )


def number(text: object) -> float | None:
    """The first number in a cell ("35W", "76 C"); None where it is withheld or has a comma ("1,024")."""
    if isinstance(text, int | float) and not isinstance(text, bool):
        return None if text in SENTINELS else float(text)
    cell = str(text).strip()
    found = NUMBER.search(cell)
    if cell.lower() in WITHHELD or found is None or COMMA.search(cell):
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
