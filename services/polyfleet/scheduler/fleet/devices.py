"""The devices that workers report, as one list. Pure; times are given."""

from collections.abc import Iterable
from dataclasses import dataclass

from polyfleet.v1 import fleet_pb2, operations_pb2
from polyfleet.wire.limits import FieldError

MAX_DEVICES = 64  # of one worker
MAX_REPORT_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class WorkerDevices:
    """What one worker reported when."""

    info: fleet_pb2.WorkerInfo
    report: operations_pb2.DeviceReport
    heard: float  # monotonic seconds


def check_devices(report: operations_pb2.DeviceReport) -> None:
    """Raise FieldError for a report that no worker sends."""
    if len(report.devices) > MAX_DEVICES:
        raise FieldError("devices.devices", f"must be at most {MAX_DEVICES}, not {len(report.devices)}")
    if (size := report.ByteSize()) > MAX_REPORT_BYTES:
        raise FieldError("devices", f"must be at most {MAX_REPORT_BYTES} bytes, not {size}")


def fleet_devices(reported: Iterable[WorkerDevices], now: float) -> list[operations_pb2.FleetDevice]:
    """Every device once, with its latest reading and all workers on it, by host, accelerator and index.

    Two workers of a host are on the same device where its uuid or PCI address says so; else by accelerator and index.
    """
    latest: dict[tuple[str, str], tuple[float, operations_pb2.DeviceState]] = {}
    workers: dict[tuple[str, str], list[str]] = {}
    for each in reported:
        for state in each.report.devices:
            name = state.uuid or state.pci_bus_id or f"{state.accelerator} {state.index}"
            key = (each.info.host, name)
            workers.setdefault(key, []).append(each.info.worker_id)
            if key not in latest or each.heard > latest[key][0]:
                latest[key] = (each.heard, state)
    found = [
        operations_pb2.FleetDevice(
            host=key[0], state=state, age_seconds=max(0.0, now - heard), worker_ids=sorted(workers[key])
        )
        for key, (heard, state) in latest.items()
    ]
    return sorted(found, key=lambda each: (each.host, each.state.accelerator, each.state.index))
