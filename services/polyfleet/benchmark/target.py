"""What can be measured, and first of all our own `Generate`. Greedy, streamed."""

import time
from types import TracebackType
from typing import Any, Protocol

from polyfleet.benchmark.work import Job, Outcome
from polyfleet.client import NO_RETRIES, AsyncClient, PolyfleetError, Tls

MAX_SECONDS = 600.0  # the longest that any one request may take


class Target(Protocol):
    """Something that serves jobs. An async context manager; `run` never raises for what the server does."""

    name: str
    address: str

    async def run(self, job: Job, due: float) -> Outcome:
        """Serve one job, due at this monotonic time, and say how it went."""
        ...

    async def __aenter__(self) -> "Target": ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None: ...


class GrpcTarget:
    """`Inference/Generate` of a Polyfleet gateway."""

    def __init__(self, name: str, address: str, model: str, api_key: str = "", *, tls: Tls | bool = False) -> None:
        self.name = name
        self.address = address
        self._model = model
        self._api_key = api_key or None
        self._tls = tls

    async def run(self, job: Job, due: float) -> Outcome:
        """See Target."""
        first = last = 0.0
        stream = self._client.stream(
            **_prompt(job), model=self._model, max_tokens=job.max_tokens, temperature=0.0, ignore_eos=True
        )
        try:
            async for delta in stream:
                if delta.token_ids:
                    last = time.monotonic()
                    first = first or last
        except PolyfleetError as error:
            return Outcome(due, error=str(error))
        usage, now = stream.transcript.usage, time.monotonic()
        prompt_tokens, tokens = (usage.prompt_tokens, usage.completion_tokens) if usage else (0, 0)
        return Outcome(due, first or now, last or now, now, prompt_tokens, tokens)

    async def token_ids(self, job: Job) -> tuple[int, ...]:
        """The ids that the gateway makes of a job's prompt."""
        if job.token_ids:
            return job.token_ids
        prompt = _prompt(job)
        tokens = await self._client.tokenize(prompt.get("prompt"), messages=prompt.get("messages"), model=self._model)
        return tokens.token_ids

    async def __aenter__(self) -> "GrpcTarget":
        self._client = AsyncClient(
            self.address, api_key=self._api_key, tls=self._tls, timeout=MAX_SECONDS, retry=NO_RETRIES
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()


def _prompt(job: Job) -> dict[str, Any]:
    if job.chat:
        return {"messages": [{"role": "user", "content": job.text}]}
    return {"token_ids": job.token_ids} if job.token_ids else {"prompt": job.text}
