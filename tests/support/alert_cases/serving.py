"""The objectives, and capacity."""

from tests.support.alert_cases.case import GATEWAY, Case, Firing, requests


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
