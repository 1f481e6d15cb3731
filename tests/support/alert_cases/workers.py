"""Workers and their devices."""

from tests.support.alert_cases.case import (
    DEVICE,
    DEVICE_LABELS,
    WORKER,
    WORKER_LABELS,
    Case,
    Firing,
    Labels,
    device,
    ledger,
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


FAULT = f'polyfleet_device_faults_total{{{{{DEVICE}, code="{{}}"}}}}'
CIRCUIT = 'polyfleet_circuit_open{{instance="{}", worker_id="w-1"}}'
TAKEN_BACK = 'polyfleet_rollout_taken_back{instance="s", deployment="d"}'
QUARANTINED = 'polyfleet_worker_quarantined{instance="s", worker_id="w-1", reason="free blocks"}'
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
        "PolyfleetWorkerQuarantined",
        "more free blocks than it has",
        {QUARANTINED: "_ 1x9"},
        5,
        (
            Firing(
                "warning",
                "Worker w-1 gets no requests: what it reports can't be true (free blocks).",
                {"worker_id": "w-1", "reason": "free blocks"},
            ),
        ),
    ),
    Case("PolyfleetWorkerQuarantined", "one odd report", {QUARANTINED: "_ 1 stale stale 1 stale stale"}, 6),
    Case(
        "PolyfleetRolloutTakenBack",
        "a revision that did not come up",
        {TAKEN_BACK: "0 1x9"},
        2,
        (
            Firing(
                "warning",
                "The newest revision of d failed and was taken back; the one before serves.",
                {"deployment": "d"},
            ),
        ),
    ),
    Case("PolyfleetRolloutTakenBack", "the next revision", {TAKEN_BACK: "0 1 1 0x9"}, 5),
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
        "PolyfleetDeviceFault",
        "the first of its kind",
        {FAULT.format("XID 79"): "_x5 1x40"},
        10,
        (Firing("critical", "cuda device 0 at w had XID 79.", DEVICE_LABELS | {"code": "XID 79"}),),
    ),
    Case(
        "PolyfleetDeviceFault",
        "one more",
        {FAULT.format("XID 48"): "1x30 2x30"},
        35,
        (Firing("critical", "cuda device 0 at w had XID 48.", DEVICE_LABELS | {"code": "XID 48"}),),
    ),
    Case("PolyfleetDeviceFault", "an old one", {FAULT.format("XID 79"): "1x60"}, 50),
    Case("PolyfleetDeviceFault", "an application's own", {FAULT.format("XID 31"): "_x5 1x40"}, 10),
    Case(
        "PolyfleetDeviceMemoryWorn",
        "a remap waits",
        device(remap_pending="0x5 1x30"),
        20,
        (
            Firing(
                "warning",
                "cuda device 0 at w has to be reset, so that it leaves out worn memory.",
                DEVICE_LABELS,
            ),
        ),
    ),
    Case("PolyfleetDeviceMemoryWorn", "none waits", device(remap_pending="0x30"), 20),
    Case(
        "PolyfleetDeviceLinkNarrow",
        "half of the lanes",
        device(pcie_lanes="8x30", pcie_max_lanes="16x30"),
        20,
        (Firing("warning", "cuda device 0 at w uses 8 lanes of PCIe, fewer than it could.", DEVICE_LABELS),),
    ),
    Case("PolyfleetDeviceLinkNarrow", "all", device(pcie_lanes="16x30", pcie_max_lanes="16x30"), 20),
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
