"""`polyfleet_device_*`: one label set for all vendors. A reading that the vendor withholds has no sample."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from polyfleet.backends.protocol import THROTTLE_REASONS, DeviceTelemetry, Health
from polyfleet.serving.health.device_watch import DeviceState

LABELS = ("accelerator", "device", "product", "uuid")
FACTS = ("driver_version", "pci_bus_id", "architecture")
GAUGES: tuple[tuple[str, str, Callable[[DeviceTelemetry], float | None]], ...] = (
    ("polyfleet_device_temperature_celsius", "Temperature.", lambda t: t.temperature_celsius),
    ("polyfleet_device_power_watts", "Power drawn.", lambda t: t.power_watts),
    ("polyfleet_device_utilization_ratio", "Share of the time in which it computed.", lambda t: t.utilization_ratio),
    ("polyfleet_device_memory_used_bytes", "Memory in use, by anybody.", lambda t: t.memory_used_bytes),
    ("polyfleet_device_memory_total_bytes", "Memory.", lambda t: t.memory_total_bytes),
    ("polyfleet_device_clock_hertz", "Clock of its cores.", lambda t: t.clock_hertz),
    (
        "polyfleet_device_remapped_rows",
        "Rows or pages of its memory that are used no more.",
        lambda t: t.strain.remapped_rows,
    ),
    ("polyfleet_device_remap_pending", "1 if more follow at its next reset.", lambda t: t.strain.remap_pending),
    ("polyfleet_device_pcie_generation", "Of PCIe, as its link runs now.", lambda t: t.strain.pcie_generation),
    ("polyfleet_device_pcie_lanes", "Lanes of PCIe that its link uses now.", lambda t: t.strain.pcie_lanes),
    ("polyfleet_device_pcie_max_lanes", "Lanes that it could use.", lambda t: t.strain.pcie_max_lanes),
)
COUNTERS: tuple[tuple[str, str, Callable[[DeviceTelemetry], float | None]], ...] = (
    (
        "polyfleet_device_errors",
        "Uncorrectable memory errors, or the accelerator's nearest count.",
        lambda t: t.errors_total,
    ),
    (
        "polyfleet_device_corrected_errors",
        "Memory errors that ECC has corrected.",
        lambda t: t.strain.corrected_errors_total,
    ),
)


def device_families(*states: DeviceState) -> Iterator[Any]:
    """All families of a worker's devices at this moment."""
    labels = [_labels(state) for state in states]
    health = GaugeMetricFamily("polyfleet_device_health", "1 for the state it is in.", labels=(*LABELS, "state"))
    for mine, state in zip(labels, states, strict=True):
        for each in Health:
            health.add_metric((*mine, each.value), float(state.telemetry.health is each))
    yield health
    for name, text, read in GAUGES:
        yield from _readings(GaugeMetricFamily(name, text, labels=LABELS), labels, states, read)
    for name, text, read in COUNTERS:
        yield from _readings(CounterMetricFamily(name, text, labels=LABELS), labels, states, read)
    yield from _strain_families(labels, states)
    facts = GaugeMetricFamily("polyfleet_device_info", "What it is; always 1.", labels=(*LABELS, *FACTS))
    for mine, state in zip(labels, states, strict=True):
        facts.add_metric((*mine, *_facts(state)), 1.0)
    yield facts


def _strain_families(labels: Sequence[tuple[str, ...]], states: Sequence[DeviceState]) -> Iterator[Any]:
    """Throttling by reason, direct links by state, faults by code, of the devices whose vendor tells."""
    throttled = GaugeMetricFamily(
        "polyfleet_device_throttled", "1 while its clock is lowered for the reason.", labels=(*LABELS, "reason")
    )
    links = GaugeMetricFamily("polyfleet_device_links", "Direct links to its neighbours.", labels=(*LABELS, "state"))
    faults = CounterMetricFamily(
        "polyfleet_device_faults", "Faults that its driver told of since the worker began.", labels=(*LABELS, "code")
    )
    for mine, state in zip(labels, states, strict=True):
        strain = state.telemetry.strain
        if (reasons := strain.throttle_reasons) is not None:
            for reason in THROTTLE_REASONS:
                throttled.add_metric((*mine, reason), float(reason in reasons))
        for name, count in (("up", strain.links_up), ("down", strain.links_down)):
            if count is not None:
                links.add_metric((*mine, name), count)
        for code, count in state.faults.items():
            faults.add_metric((*mine, code), count)
    yield from (family for family in (throttled, links, faults) if family.samples)


def _labels(state: DeviceState) -> tuple[str, ...]:
    info = state.info
    names = (info.name, info.uuid or "") if info else ("", "")
    return state.accelerator, str(state.telemetry.index), *names


def _readings(
    family: Any,
    labels: Sequence[tuple[str, ...]],
    states: Sequence[DeviceState],
    read: Callable[[DeviceTelemetry], float | None],
) -> Iterator[Any]:
    """The family, where a device has such a reading."""
    for mine, state in zip(labels, states, strict=True):
        if (value := read(state.telemetry)) is not None:
            family.add_metric(mine, value)
    if family.samples:
        yield family


def _facts(state: DeviceState) -> tuple[str, ...]:
    """In the order of FACTS."""
    telemetry, info = state.telemetry, state.info
    known = (
        telemetry.driver_version or (info.driver_version if info else None),
        telemetry.pci_bus_id or (info.pci_bus_id if info else None),
        info.architecture if info else None,
    )
    return tuple(each or "" for each in known)
