"""A third party's backend of made-up devices, whose health is what a file says. For tests of real processes."""

import os
from collections.abc import Sequence
from pathlib import Path

from polyfleet.backends.accelerator import Collectives
from polyfleet.backends.protocol import (
    Availability,
    DeviceInfo,
    DeviceTelemetry,
    GraphApi,
    Health,
    KernelCapabilities,
    MemoryInfo,
    Named,
)

FILE = "LAB_DEVICE_FILE"
VISIBLE = "LAB_VISIBLE_DEVICES"
GIB = 2**30


def install(site: Path, device_file: Path, devices: str = "0") -> dict[str, str]:
    """Make it known as `lab` to processes with the environment that this returns; `site` is a folder of its own."""
    folder = site / "polyfleet_lab-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: polyfleet-lab\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[polyfleet.backends]\nlab = tests.support.lab_backend:LabBackend\n")
    root = Path(__file__).parents[2]
    return {"PYTHONPATH": f"{root}{os.pathsep}{site}", FILE: str(device_file), VISIBLE: devices}


class LabBackend(Named):
    """Healthy, unless the file has a line that says what is wrong."""

    type = "lab"

    def availability(self) -> Availability:
        return Availability(True)

    def devices(self) -> tuple[DeviceInfo, ...]:
        visible = os.environ[VISIBLE].split(",")
        names = ("Lab One", "Lab Two")
        return tuple(DeviceInfo(i, names[int(n)], "l1", GIB, uuid=f"LAB-{int(n) + 1}") for i, n in enumerate(visible))

    def capabilities(self, device: DeviceInfo) -> KernelCapabilities:
        return KernelCapabilities(frozenset({"float32"}), "float32")

    def environment(self, indices: Sequence[int]) -> dict[str, str]:
        visible = os.environ[VISIBLE].split(",")
        return {VISIBLE: ",".join(visible[index] for index in indices)}

    def telemetry(self) -> tuple[DeviceTelemetry, ...]:
        reason = Path(os.environ[FILE]).read_text().strip()
        health = Health.UNHEALTHY if reason else Health.HEALTHY
        return tuple(DeviceTelemetry(each.index, health, reason, temperature_celsius=42.5) for each in self.devices())

    def communication(self) -> Collectives:
        return Collectives("gloo", "Gloo")

    def activate(self, index: int = 0) -> str:
        return "cpu"

    def memory(self, index: int = 0) -> MemoryInfo:
        return MemoryInfo(GIB, GIB)

    def synchronize(self, index: int = 0) -> None:
        pass

    def graphs(self) -> GraphApi | None:
        return None
