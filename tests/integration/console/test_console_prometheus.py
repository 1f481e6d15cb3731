"""The fleet's page with a Prometheus: its alerts and lines, and what is shown when it is gone or talks nonsense."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.support.console_rig import ConsoleRig, device, with_devices
from tests.support.running_scheduler import Running

from polyfleet.console.fleet.prometheus import QUERIES
from polyfleet.v1 import fleet_pb2, operations_pb2

HOSTILE = '<img src=x onerror="alert(1)">'
SINCE = "2026-01-31T12:30:00.123456789Z"


def alert(name: str, state: str = "firing", **more: str) -> dict[str, Any]:
    labels = {"alertname": name, "severity": more.pop("severity", "warning")}
    return {"labels": labels, "annotations": more, "state": state, "activeAt": SINCE, "value": "1e+00"}


class FakePrometheus(ThreadingHTTPServer):
    """Answers with `alerts`, and with 5 for every second moment of each query; or with `broken`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.alerts: list[dict[str, Any]] = []
        self.asked: set[str] = set()
        self.broken: bytes | None = None
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class Answer(BaseHTTPRequestHandler):
    server: FakePrometheus

    def do_GET(self) -> None:  # as its base calls it
        address = urlsplit(self.path)
        data: dict[str, Any] = {"alerts": self.server.alerts}
        if address.path == "/api/v1/query_range":
            asked = parse_qs(address.query)
            self.server.asked.add(asked["query"][0])
            start, end, step = (float(asked[name][0]) for name in ("start", "end", "step"))
            moments = [start + 2 * step * n for n in range(int((end - start) / step) // 2 + 1)]
            data = {"resultType": "matrix", "result": [{"metric": {}, "values": [[at, "5"] for at in moments]}]}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.server.broken or json.dumps({"status": "success", "data": data}).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def prometheus() -> Iterator[FakePrometheus]:
    server = FakePrometheus()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


async def looked(rig: ConsoleRig) -> str:
    """The fleet's page, once Prometheus was asked anew."""
    assert rig.view.prometheus
    await rig.view.prometheus.refresh()
    return (await rig.browser().get("/fleet")).text


async def test_alerts_that_fire_are_shown_with_their_runbooks(running: Running, prometheus: FakePrometheus) -> None:
    prometheus.alerts = [
        alert(
            "PolyfleetQueueGrowing", summary=f"12 wait for {HOSTILE}", runbook="docs/runbooks/PolyfleetQueueGrowing.md"
        ),
        alert("PolyfleetModelDown", severity="critical", summary="None serves.", runbook_url="https://wiki/down"),
        alert("PolyfleetDeviceHot", "pending", summary="Not yet."),
        alert("Watchdog", summary="Somebody else's."),
        alert("PolyfleetRayDown", summary="Gone.", runbook="javascript:alert(1)"),
    ]
    async with ConsoleRig(
        fleet=running.address, prometheus_url=prometheus.url, runbooks_url="https://docs.example/polyfleet/"
    ) as rig:
        page = await looked(rig)
        assert page.index("PolyfleetModelDown") < page.index("PolyfleetQueueGrowing")
        assert 'href="https://docs.example/polyfleet/docs/runbooks/PolyfleetQueueGrowing.md"' in page
        assert 'href="https://wiki/down"' in page
        assert "since 2026-01-31 12:30:00 UTC" in page
        assert not any(text in page for text in ("Not yet.", "Somebody else's.", HOSTILE, 'href="javascript:'))
        assert f"are of the Prometheus at {prometheus.url}" in page
        lines = (await rig.browser().get("/history.json")).json()
        assert prometheus.asked == set(QUERIES.values())
        assert all(lines[name][:3] == [5, None, 5] for name in QUERIES)
        assert (len(lines["at"]), lines["at"][1] - lines["at"][0]) == (361, 10)
        chinese = (await rig.browser(**{"accept-language": "zh"}).get("/fleet")).text
        assert "处理办法" in chinese


async def test_without_its_answers_the_console_judges_itself(running: Running, prometheus: FakePrometheus) -> None:
    prometheus.alerts = [alert("PolyfleetRayDown", summary="Gone.")]
    async with ConsoleRig(fleet=running.address, prometheus_url=prometheus.url) as rig:
        assert "Gone." in await looked(rig)
        for nonsense in (
            b"no json",
            b'{"status": "error", "error": "busy"}',
            b'{"status": "success", "data": []}',
            b"[]",
        ):
            prometheus.broken = nonsense
            page = await looked(rig)
            assert "Gone." not in page
            assert f"Prometheus at {prometheus.url} does not answer well" in page
            assert "As the console itself sees it" in page
            assert len((await rig.browser().get("/history.json")).json()["at"]) < 10
        prometheus.broken = None
        assert "Gone." in await looked(rig)


async def test_what_the_console_judges_itself(running: Running, rig: ConsoleRig) -> None:
    assert "Nothing that is known of." in (await rig.browser().get("/fleet")).text
    unhealthy = {"health": operations_pb2.DEVICE_HEALTH_UNHEALTHY, "reason": "XID 79"}
    stream = await with_devices(running, "w-1", device(0, **unhealthy), device(1, **unhealthy), device(2))
    status = fleet_pb2.WorkerStatus(state=fleet_pb2.WORKER_STATE_UNHEALTHY, reason="The canary failed.")
    await stream.write(fleet_pb2.RegisterRequest(status=status))
    await running.until(lambda snapshot: [each for each in snapshot.workers if each.status.reason])
    wish = fleet_pb2.ModelDeployment(name="small", source="fake:", workers=2)
    await running.fleet.Deploy(fleet_pb2.DeployRequest(deployment=wish))
    await rig.view.poll()
    page = (await rig.browser().get("/fleet")).text
    assert "2 × cuda Card: XID 79" in page
    assert "docs/runbooks/PolyfleetDeviceUnhealthy.md" in page
    assert "w-1 The canary failed." in page
    assert "small: 0 / 2" in page
    stream.cancel()
