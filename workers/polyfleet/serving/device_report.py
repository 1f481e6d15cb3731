"""A worker's devices as `Fleet` is told of them."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from polyfleet.backends.protocol import Health
from polyfleet.serving.health.device_watch import DeviceState
from polyfleet.v1 import operations_pb2 as pb

HEALTH = {
    Health.HEALTHY: pb.DEVICE_HEALTH_HEALTHY,
    Health.UNHEALTHY: pb.DEVICE_HEALTH_UNHEALTHY,
    Health.UNKNOWN: pb.DEVICE_HEALTH_UNKNOWN,
}
READINGS = (
    "temperature_celsius",
    "power_watts",
    "utilization_ratio",
    "memory_used_bytes",
    "memory_total_bytes",
    "errors_total",
    "clock_hertz",
)


def device_report(states: Iterable[DeviceState]) -> pb.DeviceReport:
    """All of them; what the vendor withholds is absent."""
    return pb.DeviceReport(devices=[device_state(each) for each in states])


def device_state(state: DeviceState) -> pb.DeviceState:
    """One."""
    told, info, strain = state.telemetry, state.info, asdict(state.telemetry.strain)
    reasons = strain.pop("throttle_reasons")
    readings: dict[str, Any] = {name: getattr(told, name) for name in READINGS} | strain
    return pb.DeviceState(
        accelerator=state.accelerator,
        index=told.index,
        name=info.name if info else "",
        uuid=(info.uuid if info else "") or "",
        pci_bus_id=told.pci_bus_id or (info.pci_bus_id if info else "") or "",
        driver_version=told.driver_version or (info.driver_version if info else "") or "",
        architecture=info.architecture if info else "",
        health=HEALTH[told.health],
        reason=told.reason,
        throttling_known=reasons is not None,
        throttle_reasons=reasons or (),
        faults=state.faults,
        **{name: value for name, value in readings.items() if value is not None},
    )
