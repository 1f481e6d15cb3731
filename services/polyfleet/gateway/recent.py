"""The requests of this gateway that run, and those that ended lately, for whoever looks after the fleet.

Never a prompt, never an answer. What decided a placement is kept for some of them only: working it out takes longer
than the placement.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from polyfleet.gateway.api import Call
from polyfleet.v1.operations_pb2 import RequestRecord
from polyfleet.wire.answers import Usage
from polyfleet.wire.limits import MAX_RECORDS

REASONS_PER_SECOND, REASONS_AT_ONCE = 5.0, 50.0


class Watched(Protocol):
    """One request, as its account knows it."""

    request_id: str
    call: Call
    model: str
    began: float  # monotonic seconds
    queue_seconds: float
    worker_ids: list[str]
    prefills: list[str]
    placement: dict[str, Any] | None

    @property
    def usage(self) -> Usage:
        """So far."""
        ...

    @property
    def first(self) -> float | None:
        """When the first token arrived, in monotonic seconds."""
        ...


class RecentRequests:
    """Those that run, and the last that ended until `told`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._running: dict[int, Watched] = {}  # by identity, in the order of their begin
        self._ended: deque[RequestRecord] = deque(maxlen=MAX_RECORDS)
        self._reasons, self._since = REASONS_AT_ONCE, clock()
        self._told_running = False

    def wants_reasons(self) -> bool:
        """Whether what decides the next placement is to be kept; counts as if it were."""
        now = self._clock()
        self._reasons = min(REASONS_AT_ONCE, self._reasons + (now - self._since) * REASONS_PER_SECOND)
        self._since = now
        if self._reasons < 1:
            return False
        self._reasons -= 1
        return True

    def begun(self, request: Watched) -> None:
        """It runs."""
        self._running[id(request)] = request

    def ended(self, request: Watched, code: str) -> None:
        """It has ended, with the status of this name."""
        if self._running.pop(id(request), None) is not None:
            self._ended.append(self._record(request, code))

    def report(self) -> tuple[list[RequestRecord], list[RequestRecord]] | None:
        """What ended since the last report that was told, and what runs; None when there is nothing to say."""
        running = [self._record(each, "") for each, _ in zip(self._running.values(), range(MAX_RECORDS), strict=False)]
        if not self._ended and not running and not self._told_running:
            return None
        return list(self._ended), running

    def told(self, ended: Iterable[RequestRecord], *, running: bool) -> None:
        """A report was heard, with these that had ended, and some that ran."""
        for each in ended:
            if self._ended and self._ended[0] is each:
                self._ended.popleft()
        self._told_running = running

    def _record(self, request: Watched, code: str) -> RequestRecord:
        used, now = request.usage, self._clock()
        record = RequestRecord(
            request_id=request.request_id,
            method=request.call.method,
            tenant=request.call.tenant,
            key_id=request.call.key_id,
            model=request.model,
            began_unix_seconds=time.time() - (now - request.began),
            seconds=now - request.began,
            queue_seconds=request.queue_seconds,
            prompt_tokens=used.prompt_tokens,
            cached_tokens=used.cached_tokens,
            completion_tokens=used.completion_tokens,
            code=code,
            worker_ids=request.worker_ids,
            prefill=request.prefills[-1] if request.prefills else "",
            placement=json.dumps(request.placement) if request.placement else "",
        )
        if request.first is not None:
            record.first_token_seconds = request.first - request.began
        return record
