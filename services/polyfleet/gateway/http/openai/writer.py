"""How an answer is written down: by an API's rules, whole or as a stream of events."""

import time
from collections.abc import Mapping
from typing import Protocol

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response

from polyfleet.gateway.errors import ApiError
from polyfleet.gateway.http.errors import error_body, error_response
from polyfleet.gateway.http.events import event
from polyfleet.gateway.http.openai.replies import Choice, Reply, UsageReply, usage_reply
from polyfleet.gateway.http.openai.shapes import Shape
from polyfleet.wire.answers import Delta, Usage
from polyfleet.wire.gathered import GatheredChoice

DONE = event(b"[DONE]")


class Writer(Protocol):
    """Writes one answer. Of a stream `begin` comes first, then `events`, in order, then `end` or `failure`."""

    def whole(self, choices: Mapping[int, GatheredChoice], usage: Usage) -> bytes:
        """The body of a whole answer."""
        ...

    def begin(self) -> bytes:
        """The events before all others."""
        ...

    def events(self, delta: Delta) -> bytes:
        """What a delta comes to; nothing where it says nothing."""
        ...

    def end(self, usage: Usage) -> bytes:
        """The events behind all others."""
        ...

    def failure(self, error: ApiError) -> bytes:
        """The event of an error in the midst of a stream."""
        ...

    def refusal(self, error: ApiError) -> Response:
        """The reply of an error before anything was said."""
        ...


class CompletionWriter:
    """Writes chat and text completions."""

    def __init__(
        self, shape: Shape, request_id: str, model: str, *, include_usage: bool = False, continuous_usage: bool = False
    ) -> None:
        self._shape = shape
        self._id = shape.id_prefix + request_id
        self._model = model
        self._include_usage = include_usage
        self._continuous_usage = continuous_usage
        self._created = int(time.time())

    def whole(self, choices: Mapping[int, GatheredChoice], usage: Usage) -> bytes:
        """As in Writer."""
        whole = [self._shape.whole(index, choice) for index, choice in sorted(choices.items())]
        return msgspec.json.encode(self._reply(self._shape.whole_object, whole, usage_reply(usage)))

    def begin(self) -> bytes:
        """As in Writer."""
        return b""

    def events(self, delta: Delta) -> bytes:
        """As in Writer."""
        usage: UsageReply | UnsetType | None = None if self._include_usage else UNSET
        if self._continuous_usage and delta.usage is not None:
            usage = usage_reply(delta.usage)
        kind = self._shape.chunk_object
        chunks = [self._reply(kind, [choice], usage) for choice in self._shape.chunks(delta)]
        return b"".join(event(msgspec.json.encode(chunk)) for chunk in chunks)

    def end(self, usage: Usage) -> bytes:
        """As in Writer."""
        if not self._include_usage:
            return DONE
        return event(msgspec.json.encode(self._reply(self._shape.chunk_object, [], usage_reply(usage)))) + DONE

    def failure(self, error: ApiError) -> bytes:
        """As in Writer."""
        return event(error_body(error, self._shape.names))

    def refusal(self, error: ApiError) -> Response:
        """As in Writer."""
        return error_response(error, self._shape.names)

    def _reply(self, kind: str, choices: list[Choice], usage: UsageReply | UnsetType | None) -> Reply:
        return Reply(self._id, kind, self._created, self._model, choices, usage)
