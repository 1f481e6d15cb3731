"""Every number on a page is what the API says: a test for each page, which asks the API itself."""

import json
import re
import statistics
import time
from collections import defaultdict
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote

from tests.integration.console.pages.conftest import Visit
from tests.support.console_stack import ConsoleStack

from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.v1 import operations_pb2 as ops

GIB = 2**30
WEIGHED = {
    "first_token_seconds": "first token, s",
    "token_seconds": "further token, s",
    "completion_seconds": "whole answer, s",
    "cached_tokens": "cached tokens",
}  # of a candidate, as the page names it
ROLES = ("prompts and answers", "computes prompts for others", "others may compute its prompts")


def grouped(value: float, digits: int = 0) -> str:
    return f"{value:,.{digits}f}".replace(",", "\u202f")


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value * 100:.0f} %"


def milliseconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 10 else f"{value:.0f} s"


def clock(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M:%S}"


def told(message: Any, name: str) -> Any:
    """A field's value; None: it is not told."""
    return getattr(message, name) if message.HasField(name) else None


def facts(page: Any) -> dict[str, str]:
    return dict(zip(page.locator("main dt").all_inner_texts(), page.locator("main dd").all_inner_texts(), strict=True))


def rows(page: Any, table: str = "main table") -> list[list[str]]:
    found = page.locator(table).evaluate_all(
        "tables => tables.flatMap(each => [...each.tBodies[0].rows].map(row => [...row.cells].map(c => c.innerText)))"
    )
    return [[str(cell).strip() for cell in row] for row in found]


def requests(stack: ConsoleStack) -> list[Any]:
    return list(stack.ask("ListRequests", ops.ListRequestsRequest()).ended)


def converse(stack: ConsoleStack, count: int = 3) -> str:
    """A benchmark of so many requests: its id, once it has ended and its requests are told of."""
    known = {each.request_id for each in requests(stack)}
    plan = ops.BenchmarkPlan(model="team/chat", requests=count, concurrency=1, prompt_tokens=8, max_tokens=8)
    job = stack.ask("StartBenchmark", ops.StartBenchmarkRequest(plan=plan)).benchmark
    while len([each for each in requests(stack) if each.request_id not in known and each.prompt_tokens]) < count:
        time.sleep(0.2)
    return str(job.id)


def first_tokens(stack: ConsoleStack) -> str:
    """The median and 99th percentile of those that ended lately, as the page has them."""
    lately = [each for each in requests(stack) if each.began_unix_seconds + each.seconds > time.time() - 300]
    first = [each.first_token_seconds for each in lately if each.HasField("first_token_seconds")]
    last = statistics.quantiles(first, n=100, method="inclusive")[98]
    return f"{milliseconds(statistics.median(first))} / {milliseconds(last)}"


def test_the_fleet(visit: Visit, stack: ConsoleStack) -> None:
    converse(stack)
    page = visit("/fleet")
    snapshot = stack.ask("ListWorkers", pb.ListWorkersRequest())
    ready = sum(each.status.state == pb.WORKER_STATE_READY for each in snapshot.workers)
    page.locator("#ready", has_text=f"{ready} / {len(snapshot.workers)}").wait_for()
    page.locator("#rate", has_text=re.compile("^0$")).wait_for()
    assert facts(page)["Requests that run"] == "0"
    deadline = time.monotonic() + 60
    while facts(page)["First token p50 / p99"] != (expected := first_tokens(stack)):  # which others change, too
        assert time.monotonic() < deadline, (facts(page), expected)
        page.wait_for_timeout(500)
    workers = {row[0]: row[2:] for row in rows(page, "main .scroll table")}
    assert set(workers) == {each.info.worker_id for each in snapshot.workers}
    for each in snapshot.workers:
        info, status = each.info, each.status
        counts = [str(status.running_sequences), str(status.waiting_sequences), "0"]
        assert workers[info.worker_id] == [
            *(info.model.name or "–", ROLES[info.role], info.accelerator, info.host),
            *counts,
        ]
    assert page.complaints == []


def test_the_map(visit: Visit, stack: ConsoleStack) -> None:
    page = visit("/fleet")
    groups = defaultdict[tuple[str, str], list[Any]](list)
    for device in stack.ask("ListDevices", ops.ListDevicesRequest()).devices:
        groups[device.state.accelerator, device.state.name].append(device)
    sections = page.locator("section.group").all()
    assert len(sections) == len(groups)
    for section, ((accelerator, product), devices) in zip(sections, sorted(groups.items()), strict=True):
        assert section.locator("h3").inner_text() == f"{accelerator} · {product or 'unnamed'}"
        line = section.locator("p").inner_text()
        use = [each.state.utilization_ratio for each in devices if each.state.HasField("utilization_ratio")]
        sick = sum(each.state.health == ops.DEVICE_HEALTH_UNHEALTHY for each in devices)
        memory = sum(each.state.memory_total_bytes for each in devices)
        expected = [f"{len(devices)} device" + "s" * (len(devices) != 1)]
        expected += [f"{grouped(memory / GIB, 1)} GiB"] if memory else []
        expected += [f"use {percent(statistics.mean(use) if use else None)}"]
        expected += [f"{sick} unhealthy"] if sick else []
        assert line.split(" · ") == expected
        for device, cell in zip(devices, section.locator("a").all(), strict=True):
            state = device.state
            used, total = told(state, "memory_used_bytes"), told(state, "memory_total_bytes")
            share = used / total if total and used is not None else None
            reads = f"; use {percent(told(state, 'utilization_ratio'))}, memory {percent(share)}"
            assert (cell.get_attribute("title") or "").endswith(reads)


def test_a_device(visit: Visit, stack: ConsoleStack) -> None:
    page = visit("/fleet")

    def shown(value: float | None, unit: str) -> str:
        return f"{'–' if value is None else grouped(value)} {unit}"

    for device in stack.ask("ListDevices", ops.ListDevicesRequest()).devices:
        state = device.state
        page.goto("/devices/" + quote(f"{device.host}/{state.accelerator}/{state.index}"))
        found = facts(page)
        assert found["Use"] == percent(told(state, "utilization_ratio"))
        memory = [told(state, name) for name in ("memory_used_bytes", "memory_total_bytes")]
        assert found["Memory"] == " / ".join("–" if each is None else f"{each / GIB:.1f} GiB" for each in memory)
        assert found["Temperature"] == shown(told(state, "temperature_celsius"), "°C")
        assert found["Power"] == shown(told(state, "power_watts"), "W")
        errors = told(state, "errors_total")
        assert found["Errors"] == ("–" if errors is None else str(errors))
        assert (found["UUID"], found["Driver"]) == (state.uuid or "–", state.driver_version or "–")
        assert found["Workers"].split() == (list(device.worker_ids) or ["–"])
        assert re.fullmatch(r"\d+ s ago", found["Read"])
    assert page.complaints == []


def test_models(visit: Visit, stack: ConsoleStack) -> None:
    page = visit("/models")
    snapshot = stack.ask("ListWorkers", pb.ListWorkersRequest())
    for deployment in snapshot.deployments:
        group = page.locator("section.group", has=page.get_by_role("heading", name=deployment.model_name, exact=True))
        ours = [each for each in snapshot.workers if each.info.deployment == deployment.name]
        ready = sum(each.status.state == pb.WORKER_STATE_READY for each in ours)
        assert f"{ready} of {deployment.workers} workers ready" in group.inner_text()
        assert f"Revision {deployment.revision}" in group.inner_text()
        assert group.get_by_label("Workers").input_value() == str(deployment.workers)
        assert group.locator("li a").all_inner_texts() == [each.info.worker_id for each in ours]


def test_a_worker(visit: Visit, stack: ConsoleStack) -> None:
    page = visit("/fleet")
    for worker in stack.ask("ListWorkers", pb.ListWorkersRequest()).workers:
        info, status, counters = worker.info, worker.status, worker.status.counters
        page.goto(f"/workers/{info.worker_id}")
        found = facts(page)
        slots = f"{status.running_sequences} / {status.waiting_sequences} of {info.model.max_sequences}"
        assert found["Runs / Waits"] == slots
        assert found["Context"] == f"{grouped(info.model.context_length)} tokens"
        assert found["Free blocks"] == f"{grouped(status.free_blocks)} / {grouped(info.model.num_blocks)}"
        assert found["Host"] == f"{info.host}, process {info.pid}"
        assert found["Prompt tokens a second, learned"] == grouped(status.prefill_tokens_per_second)
        ends = (counters.finished, counters.failed, counters.cancelled)
        assert found["Requests ended well / failed / cancelled"] == " / ".join(map(grouped, ends))
        prefix = (counters.prefix_hit_tokens, counters.prefix_queries_tokens)
        assert found["Prefix tokens found / looked for"] == " / ".join(map(grouped, prefix))


def test_requests(visit: Visit, stack: ConsoleStack) -> None:
    converse(stack)
    listed = requests(stack)
    page = visit("/requests")
    shown = {row[1]: row[2:9] for row in rows(page)}
    assert page.locator("h2").all_inner_texts() == ["Running (0)", f"Ended ({len(shown)})"]
    for each in listed:
        first = told(each, "first_token_seconds")
        assert shown[each.request_id] == [
            *(each.tenant or "–", each.model or "–", each.code),
            f"{grouped(each.seconds, 2)} s",
            "–" if first is None else milliseconds(first),
            f"{each.prompt_tokens} ({each.cached_tokens})",
            str(each.completion_tokens),
        ]
    record = next(each for each in listed if each.model == "team/chat" and each.placement)
    page.goto(f"/requests/{record.request_id}")
    found = facts(page)
    assert found["Took"] == f"{grouped(record.seconds, 3)} s"
    assert found["Waited at the worker"] == milliseconds(record.queue_seconds)
    assert found["Prompt (cached)"] == f"{record.prompt_tokens} ({record.cached_tokens})"
    assert found["Tokens"] == str(record.completion_tokens)
    assert found["Moves"] == str(max(0, len(record.worker_ids) - 1))
    placement = json.loads(record.placement)
    weighed = [*placement.get("workers", []), *placement.get("dropped", [])]
    reasons = [
        "; ".join(f"{WEIGHED.get(name, name)}: {value}" for name, value in each.items() if name != "worker_id")
        for each in weighed
    ]
    assert rows(page) == [[each["worker_id"], reason] for each, reason in zip(weighed, reasons, strict=True)]


def test_keys_and_usage(visit: Visit, stack: ConsoleStack) -> None:
    converse(stack)
    limits = ops.TenantLimits(tenant="a", weight=2.5, tokens_per_minute=1234, max_concurrent=7)
    stack.ask("LimitTenant", ops.LimitTenantRequest(limits=limits))
    listed = stack.ask("ListKeys", ops.ListKeysRequest())
    page = visit("/keys")
    assert [row[:4] for row in rows(page)] == [
        [each.id, each.role, each.tenant, clock(each.expires_unix_seconds) if each.expires_unix_seconds else "never"]
        for each in listed.keys
    ]
    for tenant in listed.tenants:
        form = page.locator(f'form[action="/tenants/{tenant.tenant}/limits"]')
        shown = [form.locator(f"[name={name}]").input_value() for name in ("tokens_per_minute", "max_concurrent")]
        assert shown == [str(tenant.tokens_per_minute), str(tenant.max_concurrent)]
        assert float(form.locator("[name=weight]").input_value()) == tenant.weight
    used = stack.ask("Usage", pb.UsageRequest()).rows
    page.goto("/usage")
    numbers = [(each.requests, each.prompt_tokens, each.cached_tokens, each.completion_tokens) for each in used]
    assert [row[3:] for row in rows(page)] == [list(map(grouped, each)) for each in numbers[::-1]]


def test_a_benchmark(visit: Visit, stack: ConsoleStack) -> None:
    job_id = converse(stack)
    page = visit(f"/bench/{job_id}")
    page.locator("#figures").wait_for()
    jobs = {each.id: each for each in stack.ask("ListBenchmarks", ops.ListBenchmarksRequest()).benchmarks}
    job = jobs[job_id]
    values = [[row.name, grouped(row.value, 2) if row.HasField("value") else "–", row.unit] for row in job.rows]
    assert rows(page, "#figures") == values
    assert f"{job.ended} / {job.plan.requests}" in page.locator("#state").inner_text()
    page.goto("/bench")
    for row in rows(page):
        job = jobs[row[0]]
        assert row[4:] == [str(job.plan.concurrency), f"{job.ended} / {job.plan.requests}", str(job.errors)]


def test_the_chats_speed(visit: Visit, stack: ConsoleStack) -> None:
    stack.say("one two three four five", token_seconds=0.02)
    page = visit("/chat")
    page.locator("#model option", has_text="team/chat").first.wait_for(state="attached")
    page.locator("#model").select_option("team/chat")
    page.get_by_label("What you say").fill("Count")
    bodies = list[str]()

    def keep(route: Any) -> None:
        answer = route.fetch()
        bodies.append(answer.text())
        route.fulfill(response=answer)

    page.route("**/chat/answer", keep)
    page.get_by_label("What you say").press("Enter")
    page.locator(".facts-line", has_text="tokens/s").wait_for()
    done = json.loads(bodies[0].strip().rpartition("data: ")[2])["done"]
    rate = (done["completion_tokens"] - 1) / (done["seconds"] - done["first_seconds"])
    shown = page.locator(".message.assistant .facts-line").inner_text()
    assert shown.startswith(f"{rate:.1f} tokens/s, first after {done['first_seconds'] * 1000:.0f} ms")
    assert any(worker in shown for worker in stack.workers)
