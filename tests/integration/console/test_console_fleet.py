"""The console on a scheduler that serves: every number as its API gives it, and what is changed there changes."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.console_rig import ConsoleRig, device, submit, with_devices
from tests.support.fake_worker import FakeWorker
from tests.support.running_scheduler import Running, start, stop

from polyfleet.process.within import Within
from polyfleet.v1 import fleet_pb2, operations_pb2

HOSTILE = '<img src=x onerror="alert(1)">'


async def test_devices_are_grouped_and_each_has_a_page(running: Running, rig: ConsoleRig) -> None:
    sick = device(1, health=operations_pb2.DEVICE_HEALTH_UNHEALTHY, reason=HOSTILE, temperature_celsius=91)
    stream = await with_devices(running, "w-1", device(0, utilization_ratio=0.7, memory_used_bytes=2 * 2**30), sick)
    browser = rig.browser()
    page = (await browser.get("/fleet")).text
    assert "cuda · Card" in page
    assert '2 devices · 16.0 GiB · use <span class="mean">70 %</span>' in page
    assert "1 unhealthy" in page
    assert 'class="cell use-7" href="/devices/node-1/cuda/0"' in page
    assert 'class="cell bad"' in page
    assert HOSTILE not in page
    one = (await browser.get("/devices/node-1/cuda/1")).text
    assert "91 °C" in one
    assert HOSTILE not in one
    history = (await browser.get("/devices/node-1/cuda/0/history.json")).json()
    assert (history["use"], history["memory"], history["watts"]) == ([0.7], [0.25], [None])
    assert "cuda · Card" in (await browser.get("/fleet?find=node-1")).text
    other = operations_pb2.DeviceState(accelerator="rocm", name="Other")
    alone = await with_devices(running, "w-2", other)
    await running.until(lambda snapshot: len(snapshot.workers) == 2)
    await rig.view.poll()
    assert "<p>1 device · " in (await browser.get("/fleet?find=w-2")).text
    assert "<p>1 个设备 · " in (await rig.browser(**{"accept-language": "zh"}).get("/fleet?find=w-2")).text
    alone.cancel()
    assert "cuda · Card" not in (await browser.get("/fleet?find=elsewhere")).text
    for absent in ("/devices/node-1/cuda/9", "/workers/w-9", "/nowhere", "/models/m/scale"):
        answer = await browser.get(absent)
        assert (answer.status_code, "<h1>Not there</h1>" in answer.text, "<nav " in answer.text) == (404, True, True)
    stream.cancel()


async def test_workers_are_shown_as_the_scheduler_has_them(running: Running, rig: ConsoleRig) -> None:
    async with FakeWorker("w-1", "small", fleet=running.address, max_sequences=7) as worker:
        await running.until(lambda snapshot: [each for each in snapshot.workers if each.status.state == 3])
        browser = rig.browser()
        assert '<dd id="ready">1 / 1</dd>' in (await browser.get("/fleet")).text
        page = (await browser.get("/workers/w-1")).text
        assert "0 / 0 of 7" in page
        assert worker.address in page
        log = (await browser.get("/workers/w-1/log")).text
        assert "error" in log  # a fake worker has no log: why stands there
        answer = await submit(browser, "/workers/w-1/drain")
        assert (answer.status_code, answer.headers["location"]) == (303, "/workers/w-1")


async def test_lines_of_a_log_are_text(rig: ConsoleRig, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [json.dumps({"level": HOSTILE, "message": HOSTILE, "more": HOSTILE}), HOSTILE]

    async def call(*_: object) -> operations_pb2.TailLogResponse:
        return operations_pb2.TailLogResponse(lines=lines)

    monkeypatch.setattr(rig.view.link, "call", call)
    log = (await rig.browser().get("/workers/w-1/log")).text
    assert (log.count("&lt;img src=x"), "<img" in log) == (5, False)


async def test_a_live_page_hears_what_changes(running: Running, rig: ConsoleRig) -> None:
    request = {"type": "http", "method": "GET", "path": "/live/fleet", "query_string": b"", "root_path": ""}
    scope = request | {"headers": [(b"host", b"localhost"), (b"accept", b"text/event-stream")], "scheme": "http"}
    sent, gone = asyncio.Queue[bytes](), asyncio.Event()

    async def receive() -> dict[str, Any]:
        if gone.is_set():
            return {"type": "http.disconnect"}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            sent.put_nowait(message["body"])

    rig.view.start()
    viewer = asyncio.create_task(rig.app(scope | {"server": ("localhost", 80)}, receive, send))
    with Within(30):
        first = await sent.get()
    assert [line for line in first.split(b"\n") if line.startswith(b"event: ")] == [
        b"event: tiles",
        b"event: conditions",
        b"event: devices",
        b"event: readings",
        b"event: workers",
    ]
    async with FakeWorker("w-late", "small", fleet=running.address):
        with Within(30):
            while b"w-late" not in await sent.get():
                pass
    gone.set()
    with Within(30):
        await viewer
    await rig.view.stop()


async def test_when_the_scheduler_is_gone_the_last_state_stays_with_its_age(tmp_path: Path) -> None:
    running = await start(tmp_path)
    async with ConsoleRig(fleet=running.address) as rig:
        stream = await with_devices(running, "w-1", device(0))
        browser = rig.browser()
        assert "does not answer" not in (await browser.get("/fleet")).text
        stream.cancel()
        await stop(running)
        await rig.view.poll()
        page = (await browser.get("/fleet")).text
        assert "does not answer" in page
        assert "What is shown is of" in page
        assert "cuda · Card" in page
        chinese = (await rig.browser(**{"accept-language": "zh"}).get("/fleet")).text
        assert f"位于 {running.address} 的调度器没有应答。" in chinese
        assert (await browser.get("/models")).status_code == 200
        for path in ("/requests", "/keys", "/usage", "/bench"):
            answer = await browser.get(path)
            assert (answer.status_code, "does not answer" in answer.text) == (200, True), path
            assert 'class="empty"' not in answer.text, path  # what can't be asked for is not said to be none
        assert (await browser.get("/models/new")).status_code == 503


async def test_of_a_scheduler_that_was_never_heard_nothing_is_said_to_be_none() -> None:
    async with ConsoleRig(fleet="127.0.0.1:1") as rig:
        for path in ("/fleet", "/models", "/requests", "/keys", "/usage", "/bench"):
            page = (await rig.browser().get(path)).text
            assert "The scheduler at 127.0.0.1:1 does not answer." in page, path
            assert 'class="empty"' not in page, path


async def test_a_model_is_deployed_scaled_and_undeployed(running: Running, rig: ConsoleRig) -> None:
    browser = rig.browser()
    form = (await browser.get("/models/new")).text
    assert 'name="option.max_sequences"' in form
    wish = {"name": "small", "model_name": "team/small", "source": "fake:", "workers": "2", "option.max_sequences": "5"}
    answer = await submit(browser, "/models", **wish)
    assert answer.status_code == 303, answer.text
    (found,) = (await running.snapshot()).deployments
    assert (found.name, found.model_name, found.workers, found.options.max_sequences) == ("small", "team/small", 2, 5)
    assert "0 of 2 workers ready" in (await browser.get("/models")).text
    again = await submit(browser, "/models", **wish)
    assert (again.status_code, "already" in again.text) == (400, True)
    assert (await submit(browser, "/models/small/scale", workers="1")).status_code == 303
    assert (await running.snapshot()).deployments[0].workers == 1
    assert (await running.snapshot()).deployments[0].options.max_sequences == 5
    assert (await submit(browser, "/models/small/undeploy")).status_code == 303
    assert not (await running.snapshot()).deployments


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"name": ""}, "name: is missing"),
        ({"source": " "}, "source: is missing"),
        ({"workers": "-1"}, "workers: must be"),
        ({"workers": "9999"}, "workers: must be"),
        ({"option.nonsense": "1"}, "nonsense"),
        ({"option.max_sequences": "many"}, "max_sequences"),
        ({"accelerators": "a b"}, "accelerator"),
    ],
)
async def test_a_wish_that_makes_no_sense_is_told_back(
    running: Running, rig: ConsoleRig, change: dict[str, str], problem: str
) -> None:
    browser = rig.browser()
    answer = await submit(browser, "/models", **({"name": "m", "source": "fake:", "workers": "1"} | change))
    assert (answer.status_code, problem in answer.text) == (400, True), answer.text
    assert not (await running.snapshot()).deployments


async def test_keys_are_made_limited_and_revoked(running: Running, rig: ConsoleRig) -> None:
    browser = rig.browser()
    made = (await submit(browser, "/keys", id="new", role="tenant", tenant="b", days="30")).text
    assert "shown this once" in made
    page = (await browser.get("/keys")).text
    assert "shown this once" not in page
    assert all(name in page for name in ("ops", "team", "new"))
    again = await submit(browser, "/keys", id="new")
    assert (again.status_code, 'role="alert"' in again.text) == (400, True)
    assert (await submit(browser, "/keys", id="bad", days="soon")).status_code == 400
    limited = await submit(browser, "/tenants/b/limits", weight="2", tokens_per_minute="600", max_concurrent="3")
    assert limited.status_code == 303
    wrong = await submit(browser, "/tenants/b/limits", weight="heavy")
    assert (wrong.status_code, "weight: must be a number, not" in wrong.text) == (400, True)
    listed = await running.fleet.ListKeys(operations_pb2.ListKeysRequest())
    (limits,) = [each for each in listed.tenants if each.tenant == "b"]
    assert (limits.weight, limits.tokens_per_minute, limits.max_concurrent) == (2, 600, 3)
    assert (await submit(browser, "/keys/new/revoke")).status_code == 303
    assert "new" not in {each.id for each in (await running.fleet.ListKeys(operations_pb2.ListKeysRequest())).keys}


def ended_record() -> operations_pb2.RequestRecord:
    placement = json.dumps(
        [
            {
                "worker_id": "w-1",
                "policy": "completion",
                "workers": [],
                "dropped": [{"worker_id": "w-2", "reason": HOSTILE}],
                "more": 3,
            }
        ]
    )
    return operations_pb2.RequestRecord(
        request_id="req-1",
        gateway_id="gw",
        method="Generate",
        tenant="a",
        model="m",
        code="OK",
        began_unix_seconds=1.8e9,
        seconds=1.5,
        first_token_seconds=0.25,
        prompt_tokens=12,
        cached_tokens=8,
        completion_tokens=34,
        worker_ids=["w-1"],
        placement=placement,
    )


async def test_requests_and_usage_are_as_gateways_told(running: Running, rig: ConsoleRig) -> None:
    rows = [
        fleet_pb2.UsageRow(day="2026-01-31", tenant=tenant, model="=m", requests=1, prompt_tokens=12345)
        for tenant in "ab"
    ]
    report = fleet_pb2.ReportUsageRequest(gateway_id="gw", number=1, rows=rows, ended=[ended_record()])
    await running.fleet.ReportUsage(report)
    browser = rig.browser()
    page = (await browser.get("/requests")).text
    assert all(text in page for text in ("req-1", "1.50 s", "250 ms", "12 (8)", ">34<"))
    assert "req-1" not in (await browser.get("/requests?tenant=b")).text
    one = (await browser.get("/requests/req-1")).text
    assert all(text in one for text in ("completion", "w-2", "3 more were not kept"))
    assert HOSTILE not in one
    usage = (await browser.get("/usage?first=2026-01-01")).text
    assert usage.count("12\u202f345") == 2
    lines = (await browser.get("/usage.csv?first=2026-01-01&tenant=a")).text.splitlines()
    assert lines[1:] == ["2026-01-31,a,'=m,1,12345,0,0"]


async def test_a_tenant_sees_their_own_usage_alone(running: Running, tmp_path: Path) -> None:
    rows = [fleet_pb2.UsageRow(day="2026-01-31", tenant=each, model=f"m-{each}", requests=1) for each in "ab"]
    await running.fleet.ReportUsage(fleet_pb2.ReportUsageRequest(gateway_id="gw", number=1, rows=rows))
    async with ConsoleRig(fleet=running.address, keys_file=str(tmp_path / "keys.yaml")) as rig:
        team = await rig.signed_in("team")
        page = (await team.get("/usage?first=2026-01-01&tenant=b")).text
        assert ("m-a" in page, "m-b" in page) == (True, False)


async def test_a_benchmark_that_can_not_run_says_why(running: Running, rig: ConsoleRig) -> None:
    browser = rig.browser()
    assert "None was run" in (await browser.get("/bench")).text
    wrong = await submit(browser, "/bench", concurrency="many")
    assert (wrong.status_code, "concurrency: must be" in wrong.text) == (400, True)
    refused = await submit(browser, "/bench", model="m")  # this scheduler knows no gateway
    assert (refused.status_code, 'role="alert"' in refused.text) == (400, True)
    assert (await browser.get("/bench/none")).status_code == 404
    assert (await submit(browser, "/bench/none/cancel")).status_code == 409
