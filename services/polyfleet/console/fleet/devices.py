"""Devices as pages show them: their names, their readings over time, and how their health changed."""

from collections import deque
from typing import NamedTuple

from polyfleet.console.fleet.history import Columns
from polyfleet.console.fleet.words import health_word
from polyfleet.v1 import operations_pb2

READINGS = ("use", "memory", "celsius", "watts")
MAX_CHANGES = 50


class HealthChange(NamedTuple):
    """What a device's health was from then on."""

    at: float  # Unix time
    health: str
    reason: str


class DeviceHistory:
    """What was seen of one device."""

    def __init__(self) -> None:
        self.readings = Columns(*READINGS)
        self.changes = deque[HealthChange](maxlen=MAX_CHANGES)

    def add(self, at: float, state: operations_pb2.DeviceState) -> None:
        """A reading was made."""
        self.readings.add(at, readings(state))
        change = HealthChange(at, health_word(state.health), state.reason)
        if not self.changes or self.changes[-1][1:] != change[1:]:
            self.changes.append(change)


def device_id(device: operations_pb2.FleetDevice) -> str:
    """Its name in addresses: host, accelerator and index."""
    return f"{device.host}/{device.state.accelerator}/{device.state.index}"


def readings(state: operations_pb2.DeviceState) -> dict[str, float | None]:
    """`use` and `memory` from 0 to 1, `celsius`, `watts`; None: its vendor withholds it."""

    def told(name: str) -> float | None:
        return float(getattr(state, name)) if state.HasField(name) else None  # type: ignore[arg-type]

    total, used = told("memory_total_bytes"), told("memory_used_bytes")
    memory = used / total if total and used is not None else None
    use, celsius, watts = told("utilization_ratio"), told("temperature_celsius"), told("power_watts")
    return {"use": use, "memory": memory, "celsius": celsius, "watts": watts}
