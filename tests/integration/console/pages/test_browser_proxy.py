"""Behind a reverse proxy with TLS, under a prefix, on a telephone, in Chinese: the whole way, by the keyboard."""

import re
from pathlib import Path
from typing import Any

from tests.integration.console.pages.conftest import Visit
from tests.support.browser import faults
from tests.support.console_stack import ANSWER, OPERATOR, PREFIX, TENANT, ConsoleStack
from tests.support.http_server import serve_http
from tests.support.prefix_proxy import prefix_proxy
from tests.support.tls_files import write_tls_files

TELEPHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 800}, "locale": "zh-CN", "ignore_https_errors": True}


def test_a_tenant_on_a_telephone_chats_behind_a_proxy(visit: Visit, stack: ConsoleStack, tmp_path: Path) -> None:
    stack.say(ANSWER)
    certificate, key = write_tls_files(tmp_path)
    with serve_http(prefix_proxy(stack.behind, PREFIX), ssl_certfile=certificate, ssl_keyfile=key) as proxy:
        page = visit(f"{proxy}{PREFIX}/chat", **TELEPHONE)
        assert page.url.startswith(f"{proxy}{PREFIX}/sign-in?next=")
        page.keyboard.type(TENANT)
        page.keyboard.press("Enter")
        page.wait_for_url(f"{proxy}{PREFIX}/chat")
        (cookie,) = page.context.cookies()
        assert (cookie["secure"], cookie["path"], cookie["httpOnly"]) == (True, PREFIX, True)
        page.locator("#model option", has_text="team/chat").first.wait_for(state="attached")
        page.locator("#model").select_option("team/chat")
        page.locator("#text").focus()
        page.keyboard.type("你好")
        page.keyboard.press("Enter")
        page.wait_for_timeout(9000)
        page.locator(".message.assistant .facts-line", has_text="·").wait_for()
        assert page.locator(".message.assistant .body").inner_text() == ANSWER
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert faults(page) == []
        page.locator("select[name=language]").select_option("en")
        page.get_by_role("link", name="Usage", exact=True).click()
        page.wait_for_url(f"{proxy}{PREFIX}/usage")
        assert page.complaints == []


def test_an_operator_sees_the_fleet_behind_a_proxy(visit: Visit, stack: ConsoleStack, tmp_path: Path) -> None:
    certificate, key = write_tls_files(tmp_path)
    with serve_http(prefix_proxy(stack.behind, PREFIX), ssl_certfile=certificate, ssl_keyfile=key) as proxy:
        page = visit(f"{proxy}{PREFIX}/", **TELEPHONE)
        page.keyboard.type(OPERATOR)
        page.keyboard.press("Enter")
        page.wait_for_url(f"{proxy}{PREFIX}/fleet")
        page.locator("#ready", has_text=re.compile(r"^\d+ / \d+$")).wait_for()
        page.evaluate("document.getElementById('ready').textContent = 'old'")
        page.locator("#ready", has_text=re.compile(r"^\d+ / \d+$")).wait_for()  # what is live comes through
        page.locator(".charts canvas").first.wait_for()
        for link in (".map a", "table a"):
            page.goto(f"{proxy}{PREFIX}/fleet")
            page.locator(link).first.focus()
            page.keyboard.press("Enter")
            page.locator("main dt").first.wait_for()
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.complaints == []
