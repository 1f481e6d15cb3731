"""Faults that drivers tell of once, and the series of strain."""

import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.watched_devices import Scripted, exposed

from polyfleet.backends.protocol import THROTTLE_REASONS, DeviceStrain, DeviceTelemetry, Health
from polyfleet.serving.health.device_watch import DeviceState, DeviceWatch
from polyfleet.serving.health.fault_watch import FaultWatch

GOOD = DeviceTelemetry(0, Health.HEALTHY)


def until(holds: Callable[[], bool]) -> None:
    """Wait for a thread to have done something; a minute at most."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_faults_are_counted_by_device_and_code_and_shown(tmp_path: Path) -> None:
    lines = [{"pci_bus_id": "0000:18:00.0", "code": "XID 79"}] * 2 + [{"pci_bus_id": "0000:2a:00.0", "code": "XID 31"}]
    told = [*map(json.dumps, lines), "no JSON", "[]"]
    program = f"import time\nfor line in {told}: print(line, flush=True)"
    backend: Any = Scripted(replace(GOOD, pci_bus_id="0000:18:00.0"))
    backend.fault_command = (sys.executable, "-c", f"{program}\ntime.sleep(60)")
    watch = DeviceWatch(backend, 0, 0.02)
    watch.start(lambda _: None)
    try:
        until(lambda: bool(watch.states) and watch.states[0].faults == {"XID 79": 2})
        series, _ = exposed(watch.states[0])
        assert {name: value for name, value in series.items() if "faults" in name} == {"faults_total XID 79": 2.0}
    finally:
        watch.stop()
    assert not any(each.name == "faults" and each.is_alive() for each in threading.enumerate())


def test_a_listener_that_fails_is_started_again_and_one_that_ends_is_not(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    program = f"import sys; f = open({str(runs)!r}, 'a+'); f.write('x'); f.seek(0); sys.exit(f.read() == 'x')"
    watch = FaultWatch((sys.executable, "-c", program), restart_seconds=0.01)
    watch.start()
    until(lambda: runs.exists() and runs.read_text() == "xx")
    watch._thread.join(10)
    assert not watch._thread.is_alive()
    watch.stop()


def test_throttling_links_and_wear_are_series_where_the_vendor_tells() -> None:
    strain = DeviceStrain(throttle_reasons=("thermal",), links_up=3, links_down=1, remapped_rows=2, remap_pending=False)
    bare, _ = exposed(DeviceState("sample", GOOD))
    series, _ = exposed(DeviceState("sample", replace(GOOD, strain=strain)))
    assert {name: value for name, value in series.items() if name not in bare} == {
        **{f"throttled {reason}": float(reason == "thermal") for reason in THROTTLE_REASONS},
        "links up": 3.0,
        "links down": 1.0,
        "remapped_rows": 2.0,
        "remap_pending": 0.0,
    }
