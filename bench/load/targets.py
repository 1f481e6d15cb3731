"""An OpenAI-compatible endpoint, to be measured. Greedy, streamed."""

import time
from typing import Any
from urllib.parse import urlsplit

import httpx2
import msgspec

from polyfleet.benchmark.target import MAX_SECONDS
from polyfleet.benchmark.work import Job, Outcome


class HttpTarget:
    """`/completions` and `/chat/completions` below `url`. `plain` sends OpenAI's own fields only."""

    def __init__(self, name: str, url: str, model: str, api_key: str = "", *, plain: bool = False) -> None:
        self.name = name
        self.address = urlsplit(url).netloc
        self._model = model
        self._plain = plain
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        self._http = httpx2.AsyncClient(
            base_url=url.rstrip("/") + "/", headers=headers, limits=limits, timeout=MAX_SECONDS, trust_env=False
        )

    async def run(self, job: Job, due: float) -> Outcome:
        """See Target."""
        path = "chat/completions" if job.chat else "completions"
        reader = EventReader(due)
        try:
            async with self._http.stream("POST", path, json=self._body(job)) as response:
                if response.status_code != 200:
                    return Outcome(due, error=f"{response.status_code}: {(await response.aread()).decode()[:200]}")
                async for line in response.aiter_lines():
                    reader.read(line)
        except (httpx2.HTTPError, msgspec.DecodeError) as error:
            return Outcome(due, error=f"{type(error).__name__}: {error}")
        return reader.outcome()

    def _body(self, job: Job) -> dict[str, Any]:
        body: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0}
        body["max_tokens"] = job.max_tokens
        if self._model:
            body["model"] = self._model
        if not self._plain:
            body["ignore_eos"] = True
        if job.chat:
            body["messages"] = [{"role": "user", "content": job.text}]
        else:
            body["prompt"] = list(job.token_ids) or job.text
        return body

    async def __aenter__(self) -> "HttpTarget":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()


class EventReader:
    """Reads the server-sent events of one completion. A stream without `[DONE]` is an error.

    The first token is the first chunk of a text completion, or the first one of a chat that has content: some servers
    send the role ahead. Only where no content comes at all (end tokens, ignored) does the role's chunk count.
    """

    def __init__(self, due: float) -> None:
        self._due = due
        self._begin = self._first = self._last = 0.0
        self._chunks = 0
        self._usage: dict[str, Any] = {}
        self._error = "the stream ended without [DONE]"

    def read(self, line: str) -> None:
        """Take one line of the body."""
        if not line.startswith("data:"):
            return
        data = line[5:].strip()
        if data == "[DONE]":
            self._error = ""
            return
        event = msgspec.json.decode(data)
        if event.get("error"):
            self._error = str(event["error"].get("message", event["error"]))
        self._usage = event.get("usage") or self._usage
        choices = event.get("choices") or ()
        if choices:
            now = time.monotonic()
            self._begin = self._begin or now
            if any(map(_has_token, choices)):
                self._first, self._last = self._first or now, now
                self._chunks += 1

    def outcome(self) -> Outcome:
        """What the events said; without usage each chunk that may hold a token counts as one."""
        now = time.monotonic()
        return Outcome(
            due=self._due,
            first=self._first or self._begin or now,
            last=self._last or now,
            end=now,
            prompt_tokens=self._usage.get("prompt_tokens", 0),
            tokens=self._usage.get("completion_tokens", self._chunks),
            error=self._error,
        )


def _has_token(choice: dict[str, Any]) -> bool:
    return "text" in choice or bool((choice.get("delta") or {}).get("content"))
