"""The clients of a soak: streams over gRPC and HTTP, some of them left half-way, every token compared."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import httpx2
import msgspec
from bench.soaking.cases import Answer, Case, first_difference

from polyfleet.client import NO_RETRIES, AsyncClient, PolyfleetError

MAX_SECONDS = 600.0
PAUSE_SECONDS = 0.5  # behind an error
HELD_UP_SECONDS = 0.5
REFUSALS = (
    "UNAVAILABLE",
    "RESOURCE_EXHAUSTED",
    "503",
    "429",
    "ConnectError",
)  # before the first token: nothing was promised


class StreamError(Exception):
    """A stream ended with `status`; `begun`: behind its first token."""

    def __init__(self, status: str, message: str, *, begun: bool) -> None:
        super().__init__(message)
        self.status = status
        self.begun = begun

    @property
    def lost(self) -> bool:
        """Whether something that was promised did not come."""
        return self.begun or self.status not in REFUSALS


class Heard(NamedTuple):
    """What came over gRPC: the answer, how often it moved, the longest pause, in seconds, up to any of its deltas."""

    answer: Answer
    moves: int
    pause: float


@dataclass
class Tally:
    """What has happened so far."""

    finished: Counter[str] = field(default_factory=Counter)  # by protocol
    cancelled: int = 0
    tokens: int = 0
    moved: int = 0
    pauses: list[float] = field(default_factory=list)  # the longest one of each stream that moved or was held up
    told: int = 0  # streams that ended with a status since their own gateway was killed
    statuses: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


class Caller:
    """Sends cases over both protocols. An async context manager."""

    def __init__(self, grpc_address: str, http_address: str, api_key: str = "") -> None:
        self.forgiven = False  # whether this gateway may take its streams with it
        self.client = AsyncClient(grpc_address, api_key=api_key or None, timeout=MAX_SECONDS, retry=NO_RETRIES)
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        limits = httpx2.Limits(max_connections=None)
        url = f"http://{http_address}/v1/"
        self._http = httpx2.AsyncClient(
            base_url=url, headers=headers, limits=limits, timeout=MAX_SECONDS, trust_env=False
        )

    async def __aenter__(self) -> "Caller":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()
        await self._http.aclose()

    async def ready_workers(self) -> int:
        """Of all models; 0 while the gateway does not answer."""
        try:
            return sum(model.ready_workers for model in await self.client.models())
        except PolyfleetError:
            return 0

    async def over_grpc(self, case: Case, leave_after: int | None = None) -> Heard:
        """The answer, or its beginning of `leave_after` deltas or more. Raises StreamError."""
        ids: list[int] = []
        text, pause, last = "", 0.0, time.monotonic()
        stream = self.client.stream(case.prompt, **case.options)
        try:
            async with stream:
                async for number, delta in _numbered(stream):
                    ids += delta.token_ids
                    text += delta.text
                    now = time.monotonic()
                    pause, last = max(pause, now - last), now
                    if leave_after is not None and number >= leave_after:
                        break
        except PolyfleetError as error:
            raise StreamError(error.status, str(error), begun=bool(ids)) from None
        return Heard(Answer(tuple(ids), text), max(0, len(stream.transcript.worker_ids) - 1), pause)

    async def over_http(self, case: Case, leave_after: int | None = None) -> Answer:
        """The answer's text, or its beginning. Raises StreamError."""
        body = {"prompt": case.prompt, "stream": True, **case.options}
        text, number = "", 0
        try:
            async with self._http.stream("POST", "completions", json=body) as response:
                if response.status_code != 200:
                    message = (await response.aread()).decode()[:200]
                    raise StreamError(str(response.status_code), message, begun=False)
                async for line in response.aiter_lines():
                    if line == "data: [DONE]":
                        return Answer((), text)
                    if line.startswith("data:"):
                        text += _text_of(msgspec.json.decode(line[5:]), begun=bool(text))
                        number += 1
                        if leave_after is not None and number >= leave_after:
                            return Answer((), text)
        except httpx2.HTTPError as error:
            raise StreamError(type(error).__name__, str(error), begun=bool(text)) from None
        raise StreamError("DATA_LOSS", "the body ended without [DONE]", begun=True)


async def _numbered(stream: Any) -> Any:
    number = 0
    async for delta in stream:
        number += 1
        yield number, delta


def _text_of(event: dict[str, Any], *, begun: bool) -> str:
    if error := event.get("error"):
        raise StreamError(str(error["code"]).upper(), error["message"], begun=begun)
    return "".join(choice["text"] for choice in event["choices"])


class Soak:
    """`clients` loops that ask `cases` at random, of any of the callers' gateways, until the time is over."""

    def __init__(self, callers: Sequence[Caller], right: Mapping[Case, Answer], cancel_share: float, seed: int) -> None:
        self.tally = Tally()
        self.over = False  # no stream starts any more
        self._callers = callers
        self._right = right
        self._cases: Sequence[Case] = list(right)
        self._cancel_share = cancel_share
        self._seed = seed

    async def run(self, clients: int, seconds: float) -> None:
        """Until `seconds` have passed and what then runs has ended."""
        timer = asyncio.get_running_loop().call_later(seconds, self.end)
        await asyncio.gather(*(self._client(number) for number in range(clients)))
        timer.cancel()

    def end(self) -> None:
        """Start no stream any more."""
        self.over = True

    async def _client(self, number: int) -> None:
        rng = random.Random(f"{self._seed}/{number}")
        while not self.over:
            caller = rng.choice(self._callers)
            case = rng.choice(self._cases)
            leave_after = rng.randint(1, 20) if rng.random() < self._cancel_share else None
            protocol = rng.choice(("grpc", "http"))
            try:
                await self._once(caller, case, protocol, leave_after)
            except StreamError as error:
                self.tally.statuses[error.status] += 1
                if error.lost and caller.forgiven:
                    self.tally.told += 1
                elif error.lost:
                    self.tally.lost.append(f"{protocol} {case.name}: {error.status}: {error}")
                await asyncio.sleep(PAUSE_SECONDS)

    async def _once(self, caller: Caller, case: Case, protocol: str, leave_after: int | None) -> None:
        tally, right, moves = self.tally, self._right[case], 0
        if protocol == "grpc":
            got, moves, pause = await caller.over_grpc(case, leave_after)
            tally.pauses += [pause] if moves or pause > HELD_UP_SECONDS else []
        else:
            got = await caller.over_http(case, leave_after)
        tally.tokens += len(got.ids)
        tally.moved += moves
        if leave_after is None:
            tally.finished[protocol] += 1
        else:
            tally.cancelled += 1
        mine, theirs = (got.ids, right.ids) if protocol == "grpc" else (got.text, right.text)
        place = first_difference(mine, theirs, whole=leave_after is None)
        if place is not None:
            unit = f"token, moved {moves} times" if protocol == "grpc" else "character"
            tally.wrong.append(f"{protocol} {case.name}: from {place} of {len(theirs)} on ({unit})")
