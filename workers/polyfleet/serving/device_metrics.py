"""`polyfleet_device_*`: one label set for all vendors. A reading that the vendor withholds has no sample."""

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from polyfleet.backends.protocol import DeviceTelemetry, Health
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
)
ERRORS = ("polyfleet_device_errors", "Uncorrectable memory errors, or the accelerator's nearest count.")


def device_families(state: DeviceState) -> Iterator[Any]:
    """All families of one device at this moment."""
    telemetry, info = state.telemetry, state.info
    labels = (
        state.accelerator,
        str(telemetry.index),
        info.name if info else "",
        (info.uuid or "") if info else "",
    )
    health = GaugeMetricFamily("polyfleet_device_health", "1 for the state it is in.", labels=(*LABELS, "state"))
    for each in Health:
        health.add_metric((*labels, each.value), float(telemetry.health is each))
    yield health
    for name, text, read in GAUGES:
        if (value := read(telemetry)) is not None:
            gauge = GaugeMetricFamily(name, text, labels=LABELS)
            gauge.add_metric(labels, value)
            yield gauge
    if telemetry.errors_total is not None:
        errors = CounterMetricFamily(*ERRORS, labels=LABELS)
        errors.add_metric(labels, telemetry.errors_total)
        yield errors
    facts = GaugeMetricFamily("polyfleet_device_info", "What it is; always 1.", labels=(*LABELS, *FACTS))
    known = {
        "driver_version": telemetry.driver_version or (info.driver_version if info else None),
        "pci_bus_id": telemetry.pci_bus_id or (info.pci_bus_id if info else None),
        "architecture": info.architecture if info else None,
    }
    facts.add_metric((*labels, *(known[name] or "" for name in FACTS)), 1.0)
    yield facts
