"""The console's pages in a browser: what stands there is what the APIs say, for everybody, in both languages."""

import re
from typing import Any

import pytest
from tests.integration.console.pages.conftest import Visit
from tests.support.browser import faults
from tests.support.console_stack import ConsoleStack
from tests.support.vendor_workers import MACHINES

from polyfleet.v1 import fleet_pb2, operations_pb2

PAGES = ("/fleet", "/models", "/models/new", "/requests", "/chat", "/keys", "/usage", "/bench")
NARROW = {"width": 390, "height": 800}


@pytest.mark.parametrize("path", PAGES)
def test_a_page_shuts_nobody_out(visit: Visit, path: str) -> None:
    page = visit(path)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert faults(page) == []
    assert page.complaints == []


def test_a_device_and_a_worker_shut_nobody_out(visit: Visit) -> None:
    page = visit("/fleet")
    for link in (".map a", "table a"):
        page.goto("/fleet")
        page.locator(link).first.click()
        assert page.locator("h1").inner_text()
        assert faults(page) == []
    assert page.complaints == []


@pytest.mark.parametrize("path", PAGES)
def test_a_page_fits_a_telephone(visit: Visit, path: str) -> None:
    page = visit(path, viewport=NARROW)
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]


def test_every_brand_is_shown_with_its_devices(visit: Visit, stack: ConsoleStack) -> None:
    page = visit("/fleet")
    listed = stack.ask("ListDevices", operations_pb2.ListDevicesRequest()).devices
    titles = page.locator(".group h3").all_inner_texts()
    for accelerator in MACHINES:
        assert any(title.startswith(f"{accelerator} · ") for title in titles), titles
    assert page.locator(".map a").count() == len(listed)


def test_the_map_follows_what_devices_read(visit: Visit, stack: ConsoleStack) -> None:
    def card(index: int, use: float, memory: int, **more: Any) -> operations_pb2.DeviceState:
        facts: dict[str, Any] = {
            "name": "Warm card",
            "health": operations_pb2.DEVICE_HEALTH_HEALTHY,
            "memory_total_bytes": 8,
        }
        return operations_pb2.DeviceState(
            accelerator="cuda", index=index, utilization_ratio=use, memory_used_bytes=memory, **facts | more
        )

    stack.tell("w-warm", card(0, 0.1, 2), card(1, 0.2, 4))
    page = visit("/fleet?find=w-warm")
    cells = page.locator(".map a")
    page.locator(".map .cell.use-2").wait_for()
    cells.first.evaluate("cell => { cell.ours = true }")
    stack.tell("w-warm", card(0, 0.9, 6), card(1, 0.6, 4))
    page.locator(".map .cell.use-9").wait_for()
    assert page.locator(".map .cell.use-6").count() == 1
    assert page.locator(".group .mean").inner_text() == "75 %"
    cells.first.hover()
    assert cells.first.get_attribute("title") == "w-warm cuda 0: healthy; use 90 %, memory 75 %"
    assert cells.first.evaluate("cell => cell.ours")
    unhealthy = {"health": operations_pb2.DEVICE_HEALTH_UNHEALTHY, "reason": "XID 79; <b>dead</b>"}
    stack.tell("w-warm", card(0, 0.9, 6, **unhealthy), card(1, 0.3, 4))
    page.locator(".map .cell.bad").wait_for()
    page.locator(".map .cell.use-3").wait_for()
    cells.first.hover()
    expected = "w-warm cuda 0: unhealthy: XID 79; <b>dead</b>; use 90 %, memory 75 %"
    assert cells.first.get_attribute("title") == expected
    assert page.complaints == []


def test_it_speaks_chinese_to_who_wants_it(visit: Visit) -> None:
    page = visit("/fleet", locale="zh-CN")
    assert page.locator("html").get_attribute("lang") == "zh"
    assert page.locator("h1").inner_text() == "集群"
    assert page.locator(".scroll td").first.evaluate("cell => getComputedStyle(cell).wordBreak") == "keep-all"
    page.locator(".u-legend").nth(3).wait_for()
    words = page.locator(".u-legend th").all_inner_texts()
    assert [each.strip(" :") for each in words[:5]] == ["时间", "每秒词元", "时间", "运行中", "等待中"]
    assert page.evaluate("document.querySelectorAll('.charts figure').length") == len([w for w in words if "时间" in w])
    page.get_by_label("语言").select_option("en")
    page.get_by_role("heading", name="Fleet", exact=True).wait_for()  # the address stays the same
    assert page.url.endswith("/fleet")
    for path in PAGES:
        page.goto(path)
        assert page.locator("html").get_attribute("lang") == "en"


def test_light_and_dark_are_a_choice(visit: Visit) -> None:
    page = visit("/fleet", color_scheme="light")
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(paper)
    page.get_by_label("Light").select_option("dark")
    page.locator('html[data-theme="dark"]').wait_for()
    assert page.evaluate(paper) != light


def test_the_keyboard_reaches_everything(visit: Visit) -> None:
    page = visit("/fleet")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.goto("/fleet")
    seen = list[str]()
    for _ in range(40):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.getAttribute('href') || document.activeElement.name || ''"))
    assert {"/fleet", "/models", "/chat", "/bench", "language", "theme", "find"} <= set(seen)
    assert any(each.startswith("/devices/") for each in seen)


def test_the_back_button_and_deep_links(visit: Visit) -> None:
    page = visit("/fleet?find=hygon")
    assert {title.split(" · ")[0] for title in page.locator(".group h3").all_inner_texts()} == {"hygon"}
    assert page.locator("input[name=find]").input_value() == "hygon"
    page.get_by_role("link", name="Models", exact=True).click()
    page.get_by_role("link", name="Requests", exact=True).click()
    page.go_back()
    page.get_by_role("heading", name="Models", exact=True).wait_for()
    page.go_back()
    assert page.url.endswith("/fleet?find=hygon")
    page.go_forward()
    page.get_by_role("heading", name="Models", exact=True).wait_for()


def test_a_model_is_deployed_chatted_with_scaled_and_undeployed(visit: Visit, stack: ConsoleStack) -> None:
    page = visit("/models")
    page.get_by_role("link", name="Deploy a model").click()
    page.get_by_label("Name", exact=True).fill("second")
    page.get_by_label(re.compile("Path of a GGUF")).fill("fake:")
    page.get_by_role("button", name="Deploy").click()
    group = page.locator("section.group", has=page.get_by_role("heading", name="second", exact=True))
    ready_of(page, group, "1 of 1 worker ready")
    page.goto("/chat")
    page.locator("#model").select_option("second")
    page.get_by_label("What you say").fill("Hello")
    page.keyboard.press("Enter")
    page.locator(".message.assistant .facts-line", has_text="tokens/s").wait_for()
    page.goto("/models")
    group.get_by_label("Workers").fill("2")
    group.get_by_role("button", name="Scale").click()
    ready_of(page, group, "2 of 2 workers ready")
    with page.expect_event("dialog") as asked:
        page.once("dialog", lambda dialog: dialog.dismiss())
        group.get_by_role("button", name="Undeploy").click()
    assert asked.value.message == "Undeploy second? Its 2 workers end what they run and go."
    assert group.count() == 1
    page.once("dialog", lambda dialog: dialog.accept())
    group.get_by_role("button", name="Undeploy").click()
    page.wait_for_url("**/models")
    group.wait_for(state="detached")
    snapshot = stack.ask("ListWorkers", fleet_pb2.ListWorkersRequest())
    assert [each.name for each in snapshot.deployments] == ["chat"]


def ready_of(page: Any, group: Any, text: str) -> None:
    """Load the page until it says so."""
    for _ in range(100):
        if text in group.inner_text():
            return
        page.wait_for_timeout(100)
        page.goto("/models")
    raise AssertionError(group.inner_text())
