"""A backend whose readings a test writes, and a device's series as Prometheus reads them."""

from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from polyfleet.backends.protocol import DeviceInfo, DeviceTelemetry
from polyfleet.serving.device_metrics import device_families
from polyfleet.serving.health.device_watch import DeviceState

GIB = 2**30
Series = dict[str, float]


class Families(Collector):
    """Serves one state's families."""

    def __init__(self, state: DeviceState) -> None:
        self._state = state

    def collect(self) -> Any:
        return device_families(self._state)


def exposed(state: DeviceState) -> tuple[Series, list[dict[str, str]]]:
    """Values as Prometheus reads them, by state, reason or code where they have one; and the labels of every sample."""
    registry = CollectorRegistry()
    registry.register(Families(state))
    series: Series = {}
    labels = []
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            name = sample.name.removeprefix("polyfleet_device_")
            kinds = [sample.labels[label] for label in ("state", "reason", "code") if label in sample.labels]
            series[" ".join((name, *kinds))] = sample.value
            labels.append({"metric": name, **sample.labels})
    return series, labels


class Scripted:
    """A backend whose readings the test gives."""

    type = "sample"

    def __init__(self, *readings: DeviceTelemetry) -> None:
        self.readings = list(readings)
        self.known = True

    def devices(self) -> tuple[DeviceInfo, ...]:
        if not self.known:
            raise RuntimeError("no driver")
        return tuple(DeviceInfo(each.index, "S1", "s1", GIB, pci_bus_id=each.pci_bus_id) for each in self.readings)

    def telemetry(self) -> tuple[DeviceTelemetry, ...]:
        return tuple(self.readings)
