"""Series that make an alert fire, and series close to them that don't, in promtool's notation (one value a minute)."""

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


def burn(percent: str) -> Firing:
    """The fast burn's alert."""
    text = f"{percent} of the requests for m are slow or fail; the month's error budget will not last."
    return Firing("critical", text, {"model": "m"})


OBJECTIVES = (
    Case("PolyfleetSloBurnFast", "a fifth fails", requests("0+80x130", "0+20x130"), 70, (burn("20%"),)),
    Case("PolyfleetSloBurnFast", "a fifth is slow", requests("0+80x130", "0+20x130", "slow"), 70, (burn("20%"),)),
    Case("PolyfleetSloBurnFast", "a tenth, for six hours", requests("0+90x400", "0+10x400"), 380, (burn("10%"),)),
    Case("PolyfleetSloBurnFast", "a twentieth", requests("0+95x130", "0+5x130"), 70),
    Case("PolyfleetSloBurnFast", "over for 35 minutes", requests("0+80x130", "0+20x35 700x70"), 70),
    Case("PolyfleetSloBurnFast", "hardly any traffic", requests("0x130", "0x60 5x70"), 65),
    Case(
        "PolyfleetSloBurnSlow",
        "2 % for three days",
        requests("0+980x600", "0+20x600"),
        80 * 60,
        (
            Firing(
                "warning",
                "2% of the last three days' requests for m were slow or failed; the goal is 1 %.",
                {"model": "m"},
            ),
        ),
        "10m",
    ),
    Case("PolyfleetSloBurnSlow", "half a percent", requests("0+995x600", "0+5x600"), 80 * 60, interval="10m"),
    Case("PolyfleetSloBurnSlow", "over", requests("0+980x600", "0+40x200 8000x400"), 80 * 60, interval="10m"),
)

READY = 'polyfleet_worker_ready{{instance="{}", model="m", accelerator="cuda"}}'
QUEUED = f'polyfleet_requests_queued{{{GATEWAY}, model="m"}}'
KV_USE = 'polyfleet_kv_cache_usage_ratio{{instance="{}", model="m", accelerator="cuda"}}'


def queue(count: int) -> Firing:
    """The queue's alert."""
    text = f"{count} requests wait for m, and they do not become fewer."
    return Firing("warning", text, {"model": "m"})


WANTED = 'polyfleet_model_workers_desired{instance="s", model="m"}'
THERE = 'polyfleet_model_workers_ready{instance="s", model="m"}'
CAPACITY = (
    Case(
        "PolyfleetModelDown",
        "no worker is ready",
        {READY.format("a"): "1 0x9", READY.format("b"): "1 0x9"},
        4,
        (Firing("critical", "No worker of m takes requests.", {"model": "m"}),),
    ),
    Case(
        "PolyfleetModelDown",
        "no worker is left",
        {WANTED: "2x20", THERE: "2 2 0x18"},
        6,
        (Firing("critical", "No worker of m takes requests.", {"model": "m"}),),
    ),
    Case("PolyfleetModelDown", "it never was up", {WANTED: "2x20", THERE: "0x20"}, 10),
    Case("PolyfleetModelDown", "nobody wants one", {WANTED: "1 1 0x18", THERE: "1 1 0x18"}, 6),
    Case(
        "PolyfleetWorkersMissing",
        "none is left",
        {WANTED: "2x30", THERE: "0x30"},
        20,
        (Firing("warning", "m lacks 2 of the workers that it is to have.", {"model": "m"}),),
    ),
    Case("PolyfleetWorkersMissing", "all are there", {WANTED: "2x30", THERE: "2x30"}, 20),
    Case("PolyfleetWorkersMissing", "one is replaced", {WANTED: "2x30", THERE: "2 2 1 1 1 1 1 2x30"}, 20),
    Case("PolyfleetModelDown", "one is", {READY.format("a"): "1 0x9", READY.format("b"): "1x10"}, 4),
    Case("PolyfleetModelDown", "for a moment", {READY.format("a"): "1 0 1x9"}, 4),
    Case("PolyfleetQueueGrowing", "it grows", {QUEUED: "0+2x30"}, 20, (queue(35),)),
    Case("PolyfleetQueueGrowing", "it is full", {QUEUED: "0x5 1024x30"}, 25, (queue(1024),)),
    Case("PolyfleetQueueGrowing", "it shrinks", {QUEUED: "100-2x40"}, 20),
    Case("PolyfleetQueueGrowing", "it is short", {QUEUED: "0 1 2 3 4 5x30"}, 20),
    Case(
        "PolyfleetKvCacheExhausted",
        "everywhere",
        {KV_USE.format("a"): "0.97x20", KV_USE.format("b"): "0.99x20"},
        15,
        (
            Firing(
                "warning",
                "Every cuda worker of m has 97% or more of its KV cache in use.",
                {"model": "m", "accelerator": "cuda"},
            ),
        ),
    ),
    Case("PolyfleetKvCacheExhausted", "one has room", {KV_USE.format("a"): "0.4x20", KV_USE.format("b"): "1x20"}, 15),
)

RESTARTS = 'polyfleet_worker_restarts_total{instance="s", deployment="d"}'
CANARY = 'polyfleet_canary_runs_total{{instance="w", result="{}"}}'
GATEWAY_LEDGER, ENGINE_LEDGER = "polyfleet_ledger_requests", "polyfleet_engine_ledger_sequences"


def unbalanced(count: int) -> Firing:
    """The ledger's alert."""
    text = f"{count} requests or sequences at x were admitted and are in no state since."
    return Firing("warning", text, {"instance": "x"})


def blocks(used: int, running: int, waiting: int) -> Labels:
    """KV blocks and sequences of one worker."""
    counts = {"kv_blocks_used": used, "sequences_running": running, "sequences_waiting": waiting}
    return {f"polyfleet_{name}{{{WORKER}}}": f"{count}x20" for name, count in counts.items()}


CIRCUIT = 'polyfleet_circuit_open{{instance="{}", worker_id="w-1"}}'
WORKERS = (
    Case(
        "PolyfleetWorkerFlapping",
        "a restart every three minutes",
        {RESTARTS: "0 0 0 1 1 1 2 2 2 3 3 3 4 4 4 5"},
        15,
        (Firing("warning", "Workers of d come and go: 5 times in 15 minutes.", {"deployment": "d"}),),
    ),
    Case(
        "PolyfleetWorkerFlapping",
        "ready and not, again and again",
        {f"polyfleet_worker_ready{{{WORKER}}}": "1 0 1 0 1 0 1"},
        6,
        (Firing("warning", "Workers of m at w come and go: 6 times in 15 minutes.", WORKER_LABELS),),
    ),
    Case("PolyfleetWorkerFlapping", "two restarts", {RESTARTS: "0 0 0 0 1 1 1 1 2x9"}, 15),
    Case("PolyfleetWorkerFlapping", "one replacement", {f"polyfleet_worker_ready{{{WORKER}}}": "1 1 0 0 1x9"}, 8),
    Case(
        "PolyfleetWorkerSpared",
        "two gateways see it",
        {CIRCUIT.format("a"): "0 1x9", CIRCUIT.format("b"): "0 0 1x9"},
        7,
        (Firing("warning", "Worker w-1 refuses or loses whatever it gets.", {"worker_id": "w-1"}),),
    ),
    Case("PolyfleetWorkerSpared", "for a while", {CIRCUIT.format("a"): "0 1 1 1 0 0 1 1"}, 7),
    Case(
        "PolyfleetCanaryFailed",
        "a wrong answer",
        {CANARY.format("wrong"): "0 0 1x9", CANARY.format("failed"): "0x9"},
        5,
        (Firing("critical", "The worker at w answers the prompt with the known answer wrongly.", {"instance": "w"}),),
    ),
    Case(
        "PolyfleetCanaryFailed",
        "right ones, and wrong ones long ago",
        {CANARY.format("right"): "0+2x20", CANARY.format("wrong"): "3x20"},
        15,
    ),
    Case(
        "PolyfleetLedgerImbalance",
        "a request is lost",
        ledger(GATEWAY_LEDGER, admitted=10, finished=5, failed=1, cancelled=1, running=2),
        10,
        (unbalanced(1),),
    ),
    Case(
        "PolyfleetLedgerImbalance",
        "sequences are lost",
        ledger(ENGINE_LEDGER, admitted=10, finished=5, failed=1, cancelled=1, running=0, waiting=1),
        10,
        (unbalanced(2),),
    ),
    Case(
        "PolyfleetLedgerImbalance",
        "both balance",
        ledger(GATEWAY_LEDGER, admitted=10, finished=5, failed=1, cancelled=1, running=3)
        | ledger(ENGINE_LEDGER, admitted=10, finished=5, failed=1, cancelled=1, running=2, waiting=1),
        10,
    ),
    Case(
        "PolyfleetKvBlocksLeaked",
        "held by nobody",
        blocks(used=3, running=0, waiting=0),
        12,
        (Firing("warning", "3 KV blocks of the worker at w are held by nobody.", WORKER_LABELS),),
    ),
    Case("PolyfleetKvBlocksLeaked", "in use", blocks(used=3, running=1, waiting=0), 12),
    Case("PolyfleetKvBlocksLeaked", "wanted", blocks(used=3, running=0, waiting=1), 12),
    Case("PolyfleetKvBlocksLeaked", "idle", blocks(used=0, running=0, waiting=0), 12),
)


def health(**states: str) -> Labels:
    """The states of one device."""
    return {f'polyfleet_device_health{{{DEVICE}, state="{state}"}}': values for state, values in states.items()}


HOT_ROCM = 'polyfleet_device_temperature_celsius{instance="w", accelerator="rocm", device="0"}'
DEVICES = (
    Case(
        "PolyfleetDeviceUnhealthy",
        "its probe reports an error",
        health(unhealthy="0 1x9", healthy="1 0x9"),
        3,
        (
            Firing(
                "critical",
                "cuda device 0 (P) at w is unhealthy.",
                DEVICE_LABELS | {"state": "unhealthy"},
            ),
        ),
    ),
    Case(
        "PolyfleetDeviceUnhealthy",
        "healthy or unknown",
        health(unhealthy="0x9", healthy="1x9", unknown="1x9"),
        3,
    ),
    Case(
        "PolyfleetDeviceHot",
        "95 °C",
        device(temperature_celsius="95x20"),
        10,
        (Firing("warning", "cuda device 0 at w has 95 °C.", DEVICE_LABELS),),
    ),
    Case(
        "PolyfleetDeviceHot",
        "a junction of 105 °C",
        {HOT_ROCM: "105x20"},
        10,
        (
            Firing(
                "warning",
                "rocm device 0 at w has 105 °C.",
                {"instance": "w", "accelerator": "rocm", "device": "0"},
            ),
        ),
    ),
    Case("PolyfleetDeviceHot", "warm", device(temperature_celsius="85x20") | {HOT_ROCM: "95x20"}, 10),
    Case("PolyfleetDeviceHot", "for a moment", device(temperature_celsius="85 95 95 85x9"), 10),
    Case(
        "PolyfleetDeviceErrors",
        "an error",
        device(errors_total="0x5 1x60"),
        60,
        (Firing("warning", "cuda device 0 at w had 1 uncorrectable errors in an hour.", DEVICE_LABELS),),
    ),
    Case("PolyfleetDeviceErrors", "old ones", device(errors_total="7x60"), 60),
    Case(
        "PolyfleetDeviceThrottled",
        "half the clock under load",
        device(clock_hertz="2e9x10 1e9x30", utilization_ratio="0.9x40"),
        30,
        (Firing("warning", "cuda device 0 at w computes at 50% of the clock it had today.", DEVICE_LABELS),),
    ),
    Case("PolyfleetDeviceThrottled", "idle", device(clock_hertz="2e9x10 1e9x30", utilization_ratio="0.1x40"), 30),
    Case("PolyfleetDeviceThrottled", "a bit", device(clock_hertz="2e9x10 1.8e9x30", utilization_ratio="0.9x40"), 30),
)

CONNECTED, WATCHERS = f"polyfleet_scheduler_connected{{{GATEWAY}}}", 'polyfleet_snapshot_watchers{instance="s"}'
NODES = 'polyfleet_ray_nodes{instance="s"}'
EXPIRY = f"polyfleet_tls_certificate_expiry_timestamp_seconds{{{GATEWAY}}}"  # promtool's clock begins at 0


def expiring(severity: str, left: str) -> Firing:
    """The certificate's alert."""
    return Firing(severity, f"The certificate of the gateway at gw expires in {left}.", {"instance": "gw"})


CONTROL = (
    Case(
        "PolyfleetSchedulerDown",
        "no snapshots",
        {CONNECTED: "1 0x9"},
        3,
        (Firing("critical", "The gateway at gw does not hear the scheduler.", {"instance": "gw"}),),
    ),
    Case("PolyfleetSchedulerDown", "for a moment", {CONNECTED: "1 0 1x9"}, 3),
    Case(
        "PolyfleetRayDown",
        "no answer",
        {NODES: "3 0x9"},
        3,
        (Firing("critical", "Ray does not answer the scheduler at s.", {"instance": "s"}),),
    ),
    Case("PolyfleetRayDown", "a node less", {NODES: "3 1x9"}, 3),
    Case(
        "PolyfleetNoGateway",
        "nobody watches",
        {WATCHERS: "2 0x9"},
        4,
        (Firing("critical", "No gateway watches the fleet of the scheduler at s.", {"instance": "s"}),),
    ),
    Case("PolyfleetNoGateway", "one watches", {WATCHERS: "2 1x9"}, 4),
    Case(
        "PolyfleetEventLoopLate",
        "one in twenty by a second",
        late(in_time="0+228x30", late="0+240x30"),
        20,
        (Firing("warning", "The process at gw does everything 900ms late.", {"instance": "gw"}),),
    ),
    Case("PolyfleetEventLoopLate", "one in a thousand", late(in_time="0+2398x30", late="0+2400x30"), 20),
    Case("PolyfleetEventLoopLate", "for a while", late(in_time="0+228x5 1140+240x20", late="0+240x30"), 20),
    Case(
        "PolyfleetCertificateExpiring",
        "in ten days",
        {EXPIRY: f"{10 * 86400}x20"},
        15,
        (expiring("warning", "9d 23h 45m 0s"),),
    ),
    Case(
        "PolyfleetCertificateExpiring",
        "in a day",
        {EXPIRY: f"{86400}x20"},
        15,
        (expiring("warning", "23h 45m 0s"), expiring("critical", "23h 45m 0s")),
    ),
    Case("PolyfleetCertificateExpiring", "in a month", {EXPIRY: f"{30 * 86400}x20"}, 15),
)
CASES = (*OBJECTIVES, *CAPACITY, *WORKERS, *DEVICES, *CONTROL)
