"""An alert, the series that it is tried on, and what is common to many."""

from dataclasses import dataclass, field

Labels = dict[str, str]
GATEWAY = 'instance="gw"'
WORKER = 'instance="w", model="m", accelerator="cuda"'
DEVICE = 'instance="w", accelerator="cuda", device="0", product="P", uuid="U"'
DEVICE_LABELS = {"instance": "w", "accelerator": "cuda", "device": "0", "product": "P", "uuid": "U"}
WORKER_LABELS = {"instance": "w", "model": "m", "accelerator": "cuda"}


@dataclass(frozen=True)
class Firing:
    """One alert as it fires."""

    severity: str
    summary: str
    labels: Labels = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """`alert` at minute `at` of these series; nothing in `fires` means that it does not fire."""

    alert: str
    what: str
    series: Labels
    at: int
    fires: tuple[Firing, ...] = ()
    interval: str = "1m"


def requests(good: str, bad: str, result: str = "failed") -> Labels:
    """Judged requests of one model; the numbers grow."""
    counted = 'polyfleet_slo_requests_total{instance="gw", model="m", result='
    return {f'{counted}"good"}}': good, f'{counted}"{result}"}}': bad}


def ledger(metric: str, **states: int) -> Labels:
    """An account that stays as it is."""
    return {f'{metric}{{instance="x", state="{state}"}}': f"{count}x20" for state, count in states.items()}


def late(in_time: str, late: str) -> Labels:
    """Looks at the clock of an event loop: within half a second, and within a whole one."""
    bucket = f"polyfleet_event_loop_lag_seconds_bucket{{{GATEWAY}, le="
    return {f'{bucket}"0.5"}}': in_time, f'{bucket}"1"}}': late, f'{bucket}"+Inf"}}': late}


def device(**readings: str) -> Labels:
    """Readings of one device."""
    return {f"polyfleet_device_{name}{{{DEVICE}}}": values for name, values in readings.items()}
