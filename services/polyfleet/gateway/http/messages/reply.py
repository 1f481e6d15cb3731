"""Answers of Anthropic's `/v1/messages`: whole, as a stream of events, and errors."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from polyfleet.gateway.errors import ApiError
from polyfleet.gateway.http.blocks import Block, Blocks, Change, Kind, blocks_of
from polyfleet.gateway.http.errors import error_headers, error_message, http_status
from polyfleet.gateway.http.events import named_event
from polyfleet.gateway.http.messages.body import CountBody, names
from polyfleet.gateway.http.names import AS_IN_CORE
from polyfleet.wire.answers import Delta, FinishReason, Usage
from polyfleet.wire.gathered import GatheredChoice

_STOP_REASONS = {FinishReason.LENGTH: "max_tokens", FinishReason.TOOL_CALLS: "tool_use"}
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
# By which Anthropic's clients, whose tool runner asks for a thread, know to send the whole conversation instead.
_NO_THREADS = {"details": {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}}
_DELTAS = {
    Kind.TEXT: ("text_delta", "text"),
    Kind.REASONING: ("thinking_delta", "thinking"),
    Kind.CALL: ("input_json_delta", "partial_json"),
}


class MessageWriter:
    """Writes one answer as Anthropic's API does."""

    def __init__(self, body: CountBody, request_id: str, model: str) -> None:
        self._body = body
        self._id = f"msg_{request_id}"
        self._request_id = request_id
        self._model = model
        self._blocks = Blocks()
        self._reason: FinishReason | None = None
        self._stop_string = ""

    def whole(self, choices: Mapping[int, GatheredChoice], usage: Usage) -> bytes:
        """The body of a whole answer."""
        said = choices[0]
        content = [_content(block) for block in blocks_of(said)]
        stopped = _stopped(said.finish_reason, said.stop_string)
        return msgspec.json.encode(self._message(content, _usage(usage)) | stopped)

    def begin(self) -> bytes:
        """The event before all others."""
        message = self._message([], {"input_tokens": 0, "output_tokens": 0})
        return _event("message_start", message=message)

    def events(self, delta: Delta) -> bytes:
        """What a delta comes to."""
        self._reason = delta.finish_reason or self._reason
        self._stop_string = delta.stop_string or self._stop_string
        return b"".join(map(_block_event, self._blocks.take(delta)))

    def end(self, usage: Usage) -> bytes:
        """The events behind all others."""
        stopped = _stopped(self._reason, self._stop_string)
        closing = b"".join(map(_block_event, self._blocks.end()))
        return closing + _event("message_delta", delta=stopped, usage=_usage(usage)) + _event("message_stop")

    def failure(self, error: ApiError) -> bytes:
        """The event of an error in the midst of a stream."""
        return _event("error", **_error(error, self._request_id, self._body))

    def refusal(self, error: ApiError) -> Response:
        """The reply of an error before anything was said."""
        return messages_error(error, self._request_id, self._body)

    def _message(self, content: list[dict[str, Any]], usage: dict[str, int]) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }


def messages_error(error: ApiError, request_id: str, body: CountBody | None = None) -> Response:
    """An error's whole reply; fields are those of the body, where there is one."""
    told = {"type": "error", **_error(error, request_id, body)}
    return Response(msgspec.json.encode(told), http_status(error), error_headers(error), "application/json")


def _error(error: ApiError, request_id: str, body: CountBody | None) -> dict[str, Any]:
    message, field = error_message(error, AS_IN_CORE if body is None else names(body))
    told = {"type": _TYPES.get(http_status(error), "api_error"), "message": message}
    return {"error": told | (_NO_THREADS if field == "thread" else {}), "request_id": request_id}


def _stopped(reason: FinishReason | None, stop_string: str) -> dict[str, str | None]:
    """Why it ended; behind a stop sequence there may be calls, which count more."""
    found = _STOP_REASONS.get(reason) if reason else None
    if found is None and stop_string:
        return {"stop_reason": "stop_sequence", "stop_sequence": stop_string}
    return {"stop_reason": found or "end_turn", "stop_sequence": None}


def _usage(usage: Usage) -> dict[str, int]:
    """Tokens that were read from the cache are not among the input's here."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
    }


def _content(block: Block) -> dict[str, Any]:
    if block.kind is Kind.TEXT:
        return {"type": "text", "text": block.text}
    if block.kind is Kind.REASONING:
        return {"type": "thinking", "thinking": block.text, "signature": ""}
    return {"type": "tool_use", "id": block.id, "name": block.name, "input": _input(block.text)}


def _input(arguments: str) -> Any:
    """A call's arguments; of one that was cut off, none."""
    try:
        return json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return {}


def _block_event(change: tuple[Change, Block, str]) -> bytes:
    what, block, piece = change
    if what is Change.BEGUN:
        return _event("content_block_start", index=block.index, content_block=_content(block))
    if what is Change.ENDED:
        return _event("content_block_stop", index=block.index)
    kind, name = _DELTAS[block.kind]
    return _event("content_block_delta", index=block.index, delta={"type": kind, name: piece})


def _event(kind: str, **fields: Any) -> bytes:
    return named_event(kind, fields)
