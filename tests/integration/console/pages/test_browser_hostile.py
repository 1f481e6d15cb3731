"""Names that others give – hosts, models, tenants, reasons – are text on every page, whatever they hold."""

import json
import time
from typing import Any

from tests.integration.console.pages.conftest import Visit
from tests.support.console_stack import ConsoleStack

from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.v1 import operations_pb2 as ops

HOSTILE = '<img src=x onerror="owned=1"><b>o</b>\'"&amp;{x}/y?z#1%2F'


def fill(stack: ConsoleStack) -> None:
    """Put it wherever somebody may name something."""
    unhealthy = ops.DEVICE_HEALTH_UNHEALTHY
    card = ops.DeviceState(accelerator="cuda", name=HOSTILE, health=unhealthy, reason=HOSTILE, driver_version=HOSTILE)
    model = pb.ModelInfo(name=HOSTILE)
    stack.tell("w-hostile", card, host=HOSTILE, version=HOSTILE, device_name=HOSTILE, model=model)
    row = pb.UsageRow(day=time.strftime("%Y-%m-%d", time.gmtime()), tenant=HOSTILE, model=HOSTILE, requests=1)
    places = [{"worker_id": HOSTILE, "policy": HOSTILE, "dropped": [{"worker_id": "w", "reason": HOSTILE}]}]
    record = ops.RequestRecord(
        request_id="req-hostile",
        gateway_id="gw-hostile",
        tenant=HOSTILE,
        model=HOSTILE,
        code="OK",
        began_unix_seconds=time.time(),
        worker_ids=["w-hostile"],
        placement=json.dumps(places),
    )
    stack.ask("ReportUsage", pb.ReportUsageRequest(gateway_id="gw-hostile", number=1, rows=[row], ended=[record]))
    wish = pb.ModelDeployment(name="hostile", model_name=HOSTILE, source=HOSTILE, workers=0)
    stack.ask("Deploy", pb.DeployRequest(deployment=wish))


def assert_text(page: Any) -> None:
    """It stands there, and made nothing."""
    main = page.locator("main")
    fields = main.locator("input").evaluate_all("inputs => inputs.map(each => each.value)")
    assert HOSTILE in main.inner_text() or HOSTILE in fields
    assert main.locator("img").count() == 0
    assert main.get_by_text("o", exact=True).count() == 0
    assert page.evaluate("typeof owned") == "undefined"


def test_names_with_markup_are_text_on_every_page(visit: Visit, stack: ConsoleStack) -> None:
    fill(stack)
    try:
        page = visit("/fleet?find=w-hostile")
        page.locator(".map a").wait_for()
        assert HOSTILE in (page.locator(".map a").get_attribute("title") or "")
        for path in ("/fleet", "/models", "/models/hostile/roll", "/requests", "/requests/req-hostile", "/usage"):
            page.goto(path)
            assert_text(page)
        page.goto("/fleet?find=w-hostile")
        page.locator(".map a").click()  # a host with slashes, in an address
        assert page.locator("h1").inner_text() == f"{HOSTILE} cuda 0"
        assert_text(page)
        page.get_by_role("link", name="w-hostile").click()
        page.get_by_role("heading", name="w-hostile").wait_for()
        assert_text(page)
        page.goto("/models")
        with page.expect_event("dialog") as asked:
            page.once("dialog", lambda dialog: dialog.dismiss())
            page.locator('form[action="/models/hostile/undeploy"] button').click()
        assert asked.value.message.startswith("Undeploy hostile? ")
    finally:
        stack.undeploy("hostile")


def test_a_chat_with_models_of_any_name(visit: Visit, stack: ConsoleStack) -> None:
    page = visit("/usage")
    page.route("**/chat/models", lambda route: route.fulfill(json={"models": [HOSTILE]}))
    told = f"data: {json.dumps({'text': 'Hello', 'worker': HOSTILE})}\n\ndata: {json.dumps({'problem': HOSTILE})}\n\n"
    page.route("**/chat/answer", lambda route: route.fulfill(body=told, content_type="text/event-stream"))
    page.goto("/chat")
    page.locator("#model option", has_text="<img").wait_for(state="attached")
    page.get_by_label("What you say").fill(HOSTILE)
    page.keyboard.press("Enter")
    page.locator(".facts-line", has_text="<img").wait_for()
    assert page.locator(".message.assistant > header").inner_text() == HOSTILE
    assert_text(page)
    page.get_by_text("Copy as", exact=True).click()
    for kind in ("curl", "python", "grpc"):
        page.locator(f"[data-copy={kind}]").click()
        assert "<img src=x" in page.locator("#code").inner_text()
    assert_text(page)
