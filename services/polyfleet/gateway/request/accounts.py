"""What is written down of each request: the ledger, the metrics, one log line. Never a prompt, never an answer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any

from polyfleet.gateway.api import Call
from polyfleet.gateway.config import Objectives
from polyfleet.gateway.errors import ApiError, Code, DeadlineExceeded, Internal, InvalidArgument
from polyfleet.gateway.ledger import Ledger, Outcome
from polyfleet.gateway.metrics import Judgement, Metrics
from polyfleet.gateway.recent import RecentRequests
from polyfleet.gateway.request.token_times import TokenTimes
from polyfleet.gateway.tenants.quotas import Account, Quotas
from polyfleet.gateway.tenants.usage import UsageBook
from polyfleet.wire.answers import Usage
from polyfleet.wire.limits import FieldError

# Ends that are no fault of the fleet's: they say nothing about its service.
CALLERS_OWN = {
    Code.CANCELLED,
    Code.INVALID_ARGUMENT,
    Code.NOT_FOUND,
    Code.PERMISSION_DENIED,
    Code.UNAUTHENTICATED,
}
log = logging.getLogger(__name__)


class Accounts:
    """Opens a Record per request. `max_seconds` bounds every request, whatever its caller allows.

    Metrics judge requests by `objectives`. `behind` is given what is written down of one that has ended, for when
    nobody waits.
    """

    def __init__(
        self,
        ledger: Ledger,
        metrics: Metrics,
        max_seconds: float,
        *,
        objectives: Objectives | None = None,
        quotas: Quotas | None = None,
        usage: UsageBook | None = None,
        recent: RecentRequests | None = None,
        behind: Callable[[Callable[[], None]], None] = lambda work: work(),
    ) -> None:
        self.ledger = ledger
        self.metrics = metrics
        self.max_seconds = max_seconds
        self.objectives = objectives or Objectives()
        self.quotas = quotas or Quotas(dict)
        self.usage = usage or UsageBook()
        self.recent = recent or RecentRequests()
        self.behind = behind
        metrics.watch_ledger(ledger)
        metrics.show_objectives(self.objectives)

    def open(self, request_id: str, call: Call) -> Record:
        """A context manager around the whole request: admitted on entry, ended on exit, with what came out of it."""
        return Record(self, request_id, call)


class Record:
    """One request's account.

    Of the errors raised inside, only ApiError, cancellation and GeneratorExit get out: a FieldError becomes
    InvalidArgument, anything else Internal.
    """

    def __init__(self, accounts: Accounts, request_id: str, call: Call) -> None:
        self.request_id = request_id
        self.worker_id = ""
        self.call = call
        self.model = ""
        self.began = 0.0
        self.queue_seconds = 0.0
        self.worker_ids: list[str] = []
        self.prefills: list[str] = []
        self.placement: dict[str, Any] | None = None  # what decided the last one, where that is kept
        self._accounts = accounts
        self._prompt_tokens = self._cached_tokens = self._completion_tokens = self._reasoning_tokens = 0
        self._times: dict[int, TokenTimes] = {}  # by choice
        self._account: Account | None = None

    def __enter__(self) -> Record:
        self._accounts.ledger.admit()
        self.began = time.monotonic()
        self._accounts.recent.begun(self)
        return self

    def claim(self) -> None:
        """The request is to be computed, at its tenant's cost. Raises ResourceExhausted where a quota is used up."""
        self._account = self._accounts.quotas.claim(self.call.tenant)

    @property
    def tenant(self) -> str:
        """Whose it is; empty without keys."""
        return self.call.tenant

    @property
    def explained(self) -> Callable[[dict[str, Any]], None] | None:
        """Who wants to know what decides its next placement."""
        return self._explain if self.call.explained or self._accounts.recent.wants_reasons() else None

    def _explain(self, placement: dict[str, Any]) -> None:
        self.placement = placement
        if self.call.explained:
            self.call.explained(placement)

    @property
    def has_deadline(self) -> bool:
        """Whether the caller has one, beside the gateway's limit."""
        return self.call.timeout is not None

    @property
    def seconds_left(self) -> float:
        """Until the caller's deadline or the gateway's limit, whichever is first."""
        limit = self._accounts.max_seconds
        allowed = limit if self.call.timeout is None else min(limit, self.call.timeout)
        return self.began + allowed - time.monotonic()

    def deadline_error(self) -> DeadlineExceeded:
        """What a request ends with when no seconds are left."""
        return DeadlineExceeded("The request's deadline has passed.")

    def name_model(self, model: str) -> None:
        """The request is for this model of the fleet (empty: not known yet); from now on it is in flight there."""
        if model != self.model:
            if self.model:
                self._leave()
            self.model = model
            self._accounts.metrics.of(model).inflight.inc()
            demand = self._accounts.metrics.demand.of(model)
            demand.inflight += 1
            demand.requests += 1

    def _leave(self) -> None:
        self._accounts.metrics.of(self.model).inflight.dec()
        self._accounts.metrics.demand.of(self.model).inflight -= 1

    def placed(self, worker_id: str, queue_seconds: float) -> None:
        """The first news came, from this worker, which had it in its queue for so long."""
        self.worker_id = worker_id
        self.queue_seconds = queue_seconds
        self._accounts.metrics.of(self.model).queue_time.observe(queue_seconds)
        self._accounts.metrics.demand.of(self.model).waited(queue_seconds)

    def prompt(self, num_tokens: int, num_cached: int) -> None:
        """The prompt was computed, so much of it from a cache."""
        self._prompt_tokens, self._cached_tokens = num_tokens, num_cached
        if self._account:
            self._account.spend(num_tokens - num_cached)

    def times(self, choice: int) -> TokenTimes:
        """Where to note when tokens of a choice arrive."""
        return self._times.setdefault(choice, TokenTimes())

    def generated(self, num_tokens: int, num_thought: int = 0) -> None:
        """The client gets so many tokens more, so many of them of thoughts."""
        self._completion_tokens += num_tokens
        self._reasoning_tokens += num_thought
        if self._account:
            self._account.spend(num_tokens)

    @property
    def usage(self) -> Usage:
        """So far."""
        return Usage(self._prompt_tokens, self._cached_tokens, self._completion_tokens, self._reasoning_tokens)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        told: BaseException | None = error
        if isinstance(error, FieldError):
            told = InvalidArgument.of(error)
        elif isinstance(error, Exception) and not isinstance(error, ApiError):
            told = Internal(f"The gateway failed; its log says why under {self.request_id}.")
        code, outcome = self._verdict(told)
        self._accounts.ledger.end(outcome)
        if self.model:
            self._leave()
        if self._account:
            self._accounts.quotas.release(self._account)
            self._accounts.usage.add(self.call.tenant, self.model, self.usage)
        self._accounts.behind(partial(self._write_down, code, error, time.monotonic()))
        if told is not None and told is not error:
            raise told from (error if code is Code.INTERNAL else None)

    def _verdict(self, error: BaseException | None) -> tuple[Code, Outcome]:
        if error is None:
            return Code.OK, Outcome.FINISHED
        if isinstance(error, (GeneratorExit, asyncio.CancelledError)):
            if self.seconds_left <= 0:
                return Code.DEADLINE_EXCEEDED, Outcome.FAILED
            return Code.CANCELLED, Outcome.CANCELLED
        return (error.code if isinstance(error, ApiError) else Code.INTERNAL), Outcome.FAILED

    def _write_down(self, code: Code, error: BaseException | None, ended: float) -> None:
        self._accounts.recent.ended(self, code.name)
        self._count(code, ended)
        self._log(code, error, ended)

    def _count(self, code: Code, ended: float) -> None:
        metrics, usage = self._accounts.metrics, self.usage
        metrics.requests.labels(self.model, self.call.method, code.name).inc()
        metrics.keys.count(self.call.key_id, code.name, usage.prompt_tokens, usage.completion_tokens)
        of_model = metrics.of(self.model)
        if code is Code.CANCELLED:
            of_model.cancellations.inc()
        of_model.duration.observe(ended - self.began)
        of_model.prompt_tokens.inc(usage.prompt_tokens)
        of_model.cached_tokens.inc(usage.cached_tokens)
        of_model.generation_tokens.inc(usage.completion_tokens)
        if (first := self.first) is not None:
            of_model.first_token.observe(first - self.began)
        for seconds in self._seconds_per_token:
            of_model.per_token.observe(seconds)
        if (judgement := self._judge(code, ended)) is not None:
            of_model.judged[judgement].inc()

    @property
    def first(self) -> float | None:
        """When the first token of all choices arrived."""
        return min((each.first for each in self._times.values() if each.first is not None), default=None)

    @property
    def _seconds_per_token(self) -> list[float]:
        """Of each choice that has more than one."""
        return [each.per_token for each in self._times.values() if each.per_token is not None]

    def _judge(self, code: Code, ended: float) -> Judgement | None:
        """By the objectives; None for what says nothing about the service, or asked no worker for anything."""
        if code in CALLERS_OWN:
            return None
        if code is not Code.OK:
            return Judgement.FAILED
        if not self.worker_id:
            return None
        objectives, first = self._accounts.objectives, (self.first or ended) - self.began
        slowest = max(self._seconds_per_token, default=0.0)
        late = first > objectives.time_to_first_token or slowest > objectives.time_per_output_token
        return Judgement.SLOW if late else Judgement.GOOD

    def _log(self, code: Code, error: BaseException | None, ended: float) -> None:
        fields = {
            "request_id": self.request_id,
            "method": self.call.method,
            "model": self.model,
            "key_id": self.call.key_id,
            "worker_id": self.worker_id,
            "code": code.name,
            "seconds": round(ended - self.began, 4),
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": self._completion_tokens,
        }
        if (trace := self.call.trace) is not None:
            fields |= {"trace_id": trace.trace_id, "span_id": trace.span_id}
        if code is Code.INTERNAL:
            log.error("Request failed.", extra=fields, exc_info=error)
        else:
            log.info("Request ended.", extra=fields)
