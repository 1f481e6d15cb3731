"""Streams: headers before there is news, comments while there is none, statuses as long as they can be had."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest

from polyfleet.gateway.errors import ApiError, Unavailable
from polyfleet.gateway.http.events import COMMENT
from polyfleet.gateway.http.openai import answer as answer_module
from polyfleet.gateway.http.openai.answer import Admission, Answer
from polyfleet.gateway.http.openai.shapes import ChatShape
from polyfleet.gateway.http.openai.writer import CompletionWriter
from polyfleet.process.within import Within
from polyfleet.wire.answers import Delta, FinishReason, Usage

SECONDS = 10.0  # against hanging
Sent = list[dict[str, Any]]


class Core:
    """Deltas as they are put; an error ends them."""

    def __init__(self) -> None:
        self.items: asyncio.Queue[Delta | Exception] = asyncio.Queue()
        self.closed = False

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        try:
            while isinstance(item := await self.items.get(), Delta):
                yield item
                if item.usage is not None:
                    return
            raise item
        finally:
            self.closed = True


class Client:
    """Runs an answer and keeps what is sent; `leave` is a disconnect."""

    def __init__(self, core: Core, admission: Admission, comment_seconds: float = 0.02) -> None:
        writer = CompletionWriter(ChatShape(logprobs=False), "r", "m")
        answer = Answer(core.deltas, admission, writer, "r", stream=True, comment_seconds=comment_seconds)
        self.sent: Sent = []
        self.leave = asyncio.Event()
        self._news = asyncio.Event()
        self.task = asyncio.create_task(answer({"type": "http"}, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)
        self._news.set()

    async def until(self, body: bytes, times: int = 1) -> None:
        while self.body.count(body) < times:
            self._news.clear()
            with Within(SECONDS):
                await self._news.wait()

    @property
    def body(self) -> bytes:
        return b"".join(each.get("body", b"") for each in self.sent)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])


def admitted() -> Admission:
    admission = Admission(1)
    admission.one()
    return admission


LAST = Delta(0, finish_reason=FinishReason.STOP, usage=Usage(1))


async def test_headers_and_comments_come_before_the_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_module, "HEADERS_SECONDS", 0.0)
    core = Core()
    client = Client(core, admitted())
    await client.until(COMMENT, 3)
    assert client.status == 200
    core.items.put_nowait(Delta(0, "hi"))
    await client.until(b"hi")
    before = client.body.count(COMMENT)
    await client.until(COMMENT, before + 2)
    core.items.put_nowait(LAST)
    await client.task
    assert client.body.endswith(b"data: [DONE]\n\n")
    assert [each.get("more_body") for each in client.sent[1:]] == [True] * (len(client.sent) - 2) + [False]


async def test_a_stream_with_news_gets_no_comments() -> None:
    core = Core()
    client = Client(core, admitted(), comment_seconds=SECONDS)
    for delta in (Delta(0, "hi"), LAST):
        core.items.put_nowait(delta)
    await client.task
    assert COMMENT not in client.body
    assert client.body.count(b"data: ") == 3


@pytest.mark.parametrize("admission", [admitted(), Admission(1)], ids=["admitted", "not admitted"])
async def test_an_error_before_the_headers_is_a_status(admission: Admission) -> None:
    core = Core()
    client = Client(core, admission, comment_seconds=SECONDS)
    core.items.put_nowait(Unavailable("Busy.", retry_after=1.0))
    await client.task
    assert client.status == 503
    assert core.closed


@pytest.mark.parametrize("error", [Unavailable("Busy."), ValueError("broken")])
async def test_an_error_behind_the_headers_is_an_event(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_module, "HEADERS_SECONDS", 0.0)
    core = Core()
    client = Client(core, admitted())
    await client.until(COMMENT)
    core.items.put_nowait(error)
    await client.task
    assert client.status == 200
    told = msgspec.json.decode(client.sent[-1]["body"].removeprefix(b"data: "))["error"]
    assert told["code"] == ("unavailable" if isinstance(error, ApiError) else "internal")
    assert (client.sent[-1]["more_body"], b"[DONE]" in client.body) == (False, False)


async def test_without_an_admission_headers_wait_for_the_first_comment() -> None:
    """All of several prompts have to be good: one of two is not enough."""
    core, admission = Core(), Admission(2)
    admission.one()
    client = Client(core, admission, comment_seconds=0.02)
    await client.until(COMMENT)
    assert client.status == 200
    core.items.put_nowait(LAST)
    await client.task


async def test_a_client_that_leaves_while_there_is_no_news_ends_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_module, "HEADERS_SECONDS", 0.0)
    core = Core()
    client = Client(core, admitted())
    await client.until(COMMENT, 2)
    client.leave.set()
    await client.task
    assert core.closed
    sent = len(client.sent)
    await asyncio.sleep(0.06)
    assert len(client.sent) == sent
