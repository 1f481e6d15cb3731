"""Which session each sequence of the engine belongs to: names sequences for the engine and brings its news home."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count

from polyfleet.convert.sequences import delta_message, scores_message
from polyfleet.serving.messages import StepNews
from polyfleet.serving.session import MAX_DELTA_TOKENS, GatewaySession
from polyfleet.wire.answers import INVALID_ARGUMENT
from polyfleet.wire.requests import SequenceRequest
from polyfleet.wire.tracing import trace_context

log = logging.getLogger(__name__)

RESOURCE_EXHAUSTED, FAILED_PRECONDITION, UNAVAILABLE = 8, 9, 14  # google.rpc.Code


@dataclass(frozen=True, slots=True)
class Route:
    """Where news of one engine sequence goes."""

    session: GatewaySession
    sequence_id: str
    logprobs: bool
    fields: Mapping[str, str]  # for logs: whose it is


def whose(request: SequenceRequest) -> dict[str, str]:
    """What logs say of a sequence."""
    trace = trace_context([request.traceparent], [request.tracestate])
    named = {"sequence_id": request.sequence_id, "request_id": request.request_id}
    return named if trace is None else {**named, "trace_id": trace.trace_id, "span_id": trace.span_id}


class SequenceRouter:
    """All sessions and their open sequences. Every start gets a name of its own, so late news of a cancelled sequence
    can reach neither another gateway nor a sequence started under the same id since."""

    def __init__(self) -> None:
        self.sessions: set[GatewaySession] = set()
        self._routes: dict[str, Route] = {}
        self._serial = count(1)

    def __len__(self) -> int:
        return len(self._routes)

    @property
    def quiet(self) -> bool:
        """Whether no sequence is open and every delta has been taken."""
        return all(session.quiet for session in self.sessions)

    def engine_name(self, sequence_id: str) -> str:
        """A new name for a sequence, unique in this worker's life."""
        return f"{next(self._serial)}:{sequence_id}"

    def connect(self, session: GatewaySession, request: SequenceRequest, engine_id: str) -> None:
        """From now on news of `engine_id` goes to the session whose `request` this is."""
        session.open[request.sequence_id] = engine_id
        route = Route(session, request.sequence_id, request.logprobs is not None, whose(request))
        self._routes[engine_id] = route
        log.debug("Sequence started.", extra=route.fields)

    def disconnect(self, session: GatewaySession, sequence_id: str) -> str | None:
        """No more news of it; the engine's name of what has to be cancelled there, None when it is not open."""
        engine_id = session.open.get(sequence_id)
        session.forget(sequence_id)
        if engine_id is not None:
            del self._routes[engine_id]
        return engine_id

    def deliver(self, news: StepNews) -> None:
        """Push one step's news to the sessions it touches."""
        for update in news.updates:
            route = self._routes.get(update.sequence_id)
            if route is None:
                continue
            if update.error:
                log.warning("Sequence failed: %s", update.error, extra=route.fields)
            if update.error or update.finish_reason is not None:
                del self._routes[update.sequence_id]
            for first in range(0, len(update.prompt_logprobs), MAX_DELTA_TOKENS):
                some = update.prompt_logprobs[first : first + MAX_DELTA_TOKENS]
                route.session.push(scores_message(some, route.sequence_id))
            route.session.push(delta_message(update, route.sequence_id, logprobs=route.logprobs))
        for refusal in news.refusals:
            route = self._routes.pop(refusal.sequence_id, None)
            if route is not None:
                log.info("Sequence refused: %s", refusal.reason, extra=route.fields)
                route.session.fail(route.sequence_id, INVALID_ARGUMENT, refusal.reason)

    def fail_all(self, code: int, message: str, *, broken: bool = False) -> list[str]:
        """End every open sequence with a google.rpc code; the engine's names of them. `broken`: the worker failed."""
        routes, self._routes = self._routes, {}
        for route in routes.values():
            route.session.fail(route.sequence_id, code, message, broken=broken)
        return list(routes)
