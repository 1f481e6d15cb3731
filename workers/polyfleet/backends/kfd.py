"""The kernel fusion driver's topology: what HIP devices (AMD, Hygon) are, by reading files only."""

from dataclasses import dataclass

from polyfleet.backends.host import Host

NODES = "sys/class/kfd/kfd/topology/nodes"


@dataclass(frozen=True, slots=True)
class KfdNode:
    """One compute device of the topology."""

    vendor_id: int
    device_id: int
    architecture: str  # gfx942
    pci_bus_id: str
    compute_units: int
    memory_bytes: int
    unique_id: str


def kfd_nodes(host: Host, vendor_id: int) -> tuple[KfdNode, ...]:
    """The vendor's devices in PCI bus order; CPUs (no SIMDs) and devices without memory of their own are left out."""
    nodes = []
    for path in (host.root / NODES).glob("*"):
        facts = properties(host.read(f"{NODES}/{path.name}/properties"))
        memory = properties(host.read(f"{NODES}/{path.name}/mem_banks/0/properties"))
        if facts.get("simd_count", 0) > 0 and facts.get("vendor_id") == vendor_id:
            nodes.append(_node(facts, memory.get("size_in_bytes", 0)))
    return tuple(sorted(nodes, key=lambda each: each.pci_bus_id))


def properties(text: str) -> dict[str, int]:
    """`name value` lines; what is no number is left out."""
    pairs = (line.split() for line in text.splitlines())
    return {each[0]: int(each[1]) for each in pairs if len(each) == 2 and each[1].isdigit()}


def gfx_name(version: int) -> str:
    """90402 is gfx942, 90010 gfx90a, 110000 gfx1100: decimal fields, minor and stepping printed in hexadecimal."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _node(facts: dict[str, int], memory_bytes: int) -> KfdNode:
    location, domain = facts.get("location_id", 0), facts.get("domain", 0)
    address = f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"
    unique = facts.get("unique_id", 0)
    return KfdNode(
        vendor_id=facts["vendor_id"],
        device_id=facts.get("device_id", 0),
        architecture=gfx_name(facts.get("gfx_target_version", 0)),
        pci_bus_id=address,
        compute_units=facts["simd_count"] // max(1, facts.get("simd_per_cu", 1)),
        memory_bytes=memory_bytes,
        unique_id=f"GPU-{unique:016x}" if unique else "",
    )
