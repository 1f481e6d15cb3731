"""The scheduler, Ray, event loops, certificates."""

from tests.support.alert_cases.case import GATEWAY, Case, Firing, late

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
