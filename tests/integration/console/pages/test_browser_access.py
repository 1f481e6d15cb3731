"""Who signs in sees what their key opens; and what is gone is said, until it is back."""

import time

import pytest
from tests.integration.console.pages.conftest import Visit
from tests.support.browser import faults
from tests.support.console_stack import OPERATOR, PROMETHEUS, TENANT, ConsoleStack

from polyfleet.v1 import fleet_pb2, operations_pb2

OPERATORS = ("/fleet", "/models", "/requests", "/keys", "/bench")


def test_a_wrong_key_is_refused_and_a_right_one_leads_where_one_wanted(visit: Visit, stack: ConsoleStack) -> None:
    page = visit("/models?x=1", stack.keyed)
    assert page.url.startswith(f"{stack.keyed}/sign-in?next=")
    assert faults(page) == []
    page.get_by_label("Key").fill("wrong")
    page.keyboard.press("Enter")
    assert page.get_by_role("alert").inner_text()
    page.get_by_label("Key").fill(OPERATOR)
    page.keyboard.press("Enter")
    page.wait_for_url("**/models?x=1")
    assert page.get_by_role("button", name="Sign out").is_visible()
    assert page.evaluate("document.cookie") == ""  # scripts can't read the session
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/sign-in")
    page.go_back()
    page.get_by_role("heading", name="Sign in").wait_for()  # nothing was stored


def test_a_tenant_has_the_chat_and_their_usage(visit: Visit, stack: ConsoleStack) -> None:
    page = visit("/", stack.keyed)
    page.get_by_label("Key").fill(TENANT)
    page.keyboard.press("Enter")
    page.wait_for_url("**/chat")
    assert page.locator("nav a").all_inner_texts() == ["Chat", "Usage"]
    for path in OPERATORS:
        answer = page.goto(path)
        assert answer is not None
        assert answer.status == 403
        assert "for operators" in page.locator("main").inner_text()


def test_a_session_is_no_use_across_roles(visit: Visit, stack: ConsoleStack) -> None:
    tenant, operator = visit("/", stack.keyed), visit("/", stack.keyed)
    for page, key in ((tenant, TENANT), (operator, OPERATOR)):
        page.get_by_label("Key").fill(key)
        page.keyboard.press("Enter")
        page.wait_for_url(lambda url: "sign-in" not in url)
    (cookie,) = [each for each in tenant.context.cookies() if each["name"] == "polyfleet_session"]
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    name, _, signature = cookie["value"].partition(".")
    (other,) = [each for each in operator.context.cookies() if each["name"] == "polyfleet_session"]
    forged = {**cookie, "value": f"{other['value'].partition('.')[0]}.{signature}"}
    tenant.context.clear_cookies()
    tenant.context.add_cookies([forged])
    tenant.goto("/models")
    assert tenant.locator("h1").inner_text() == "Sign in"
    csrf = tenant.context.request.post(f"{stack.keyed}/models/chat/undeploy", form={"csrf": name})
    assert csrf.status in (401, 403)
    assert "chat" in {each.deployment for each in stack.workers.values()}


@pytest.mark.parametrize("path", ["/fleet", "/models", "/requests"])
def test_without_a_scheduler_the_last_state_stays_and_is_fresh_again(
    visit: Visit, stack: ConsoleStack, path: str
) -> None:
    page = visit(path)
    stack.stop_scheduler()
    try:
        if path != "/fleet":  # which says so by itself
            page.reload()
        page.locator(".problem", has_text="does not answer").wait_for()
        if path == "/fleet":
            assert "What is shown is of" in page.locator(".problem").inner_text()
            assert page.locator(".map a").count() > 0
    finally:
        stack.start_scheduler()
    if path == "/fleet":
        page.locator(".problem").wait_for(state="detached")
    stack.until_serving({"cuda"})


def test_who_holds_a_key_that_expires_is_asked_for_another(visit: Visit, stack: ConsoleStack) -> None:
    expires = int(time.time()) + 4
    info = operations_pb2.KeyInfo(id="brief", tenant="a", role="tenant", expires_unix_seconds=expires)
    secret = stack.ask("CreateKey", operations_pb2.CreateKeyRequest(key=info)).secret
    page = visit("/", stack.keyed)
    page.get_by_label("Key").fill(secret)
    page.keyboard.press("Enter")
    page.wait_for_url("**/chat")
    while "sign-in" not in page.url:
        assert time.time() < expires + 60
        page.wait_for_timeout(200)
        page.goto("/usage")
    page.get_by_label("Key").fill(secret)
    page.keyboard.press("Enter")
    assert "expired" in page.get_by_role("alert").inner_text()


def test_without_its_prometheus_the_page_says_so_and_judges_itself(visit: Visit, stack: ConsoleStack) -> None:
    page = visit("/fleet", stack.keyed)
    page.get_by_label("Key").fill(OPERATOR)
    page.keyboard.press("Enter")
    page.locator("#told-by", has_text=f"Prometheus at {PROMETHEUS} does not answer").wait_for()
    assert "As the console itself sees it" in page.locator("#told-by").inner_text()
    page.locator(".charts canvas").first.wait_for()  # the hour that it remembers


def test_a_deployment_that_finds_no_room_says_why(visit: Visit, stack: ConsoleStack) -> None:
    page = visit("/models/new")
    page.get_by_label("Name", exact=True).fill("nowhere")
    page.locator("[name=source]").fill("fake:")
    page.get_by_label("Accelerators").fill("cambricon")
    page.get_by_role("button", name="Deploy").click()
    page.wait_for_url("**/models")
    try:
        page.locator(".problem", has_text="No node of the cluster has cambricon.").wait_for()
    finally:
        stack.ask("Undeploy", fleet_pb2.UndeployRequest(name="nowhere"))
