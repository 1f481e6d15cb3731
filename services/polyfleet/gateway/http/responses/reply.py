"""Answers of `/v1/responses`: whole, and as a stream of events."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from polyfleet.gateway.errors import ApiError
from polyfleet.gateway.http.blocks import Block, Blocks, Change, Kind, blocks_of
from polyfleet.gateway.http.errors import error_message, error_response, openai_code
from polyfleet.gateway.http.events import named_event
from polyfleet.gateway.http.responses.body import ResponsesBody, names
from polyfleet.wire.answers import Delta, FinishReason, Usage
from polyfleet.wire.gathered import GatheredChoice

_PREFIXES = {Kind.TEXT: "msg", Kind.REASONING: "rs", Kind.CALL: "fc"}
_KINDS = {Kind.TEXT: "output_text", Kind.REASONING: "reasoning_text", Kind.CALL: "function_call_arguments"}


class ResponseWriter:
    """Writes one answer as OpenAI's Responses API does."""

    def __init__(self, body: ResponsesBody, request_id: str, model: str) -> None:
        self._body = body
        self._request_id = request_id
        self._model = model
        self._created = int(time.time())
        self._blocks = Blocks()
        self._reason: FinishReason | None = None
        self._sequence = 0

    def whole(self, choices: Mapping[int, GatheredChoice], usage: Usage) -> bytes:
        """The body of a whole answer."""
        said = choices[0]
        return msgspec.json.encode(self._ended(blocks_of(said), said.finish_reason, usage))

    def begin(self) -> bytes:
        """The events before all others."""
        begun = self._response("in_progress", [])
        return self._event("response.created", response=begun) + self._event("response.in_progress", response=begun)

    def events(self, delta: Delta) -> bytes:
        """What a delta comes to."""
        self._reason = delta.finish_reason or self._reason
        return self._all(self._blocks.take(delta))

    def end(self, usage: Usage) -> bytes:
        """The events behind all others."""
        short = self._reason is FinishReason.LENGTH
        closing = self._all(self._blocks.end(), "incomplete" if short else "completed")
        response = self._ended(self._blocks.standing, self._reason, usage)
        return closing + self._event(f"response.{response['status']}", response=response)

    def failure(self, error: ApiError) -> bytes:
        """The event of an error in the midst of a stream."""
        message, param = error_message(error, names(self._body))
        return self._event("error", code=openai_code(error), message=message, param=param)

    def refusal(self, error: ApiError) -> Response:
        """The reply of an error before anything was said."""
        return error_response(error, names(self._body))

    def _ended(self, blocks: list[Block], reason: FinishReason | None, usage: Usage) -> dict[str, Any]:
        short = reason is FinishReason.LENGTH
        items = [self._item(block, "incomplete" if short and block is blocks[-1] else "completed") for block in blocks]
        response = self._response("incomplete" if short else "completed", items)
        response["incomplete_details"] = {"reason": "max_output_tokens"} if short else None
        response["usage"] = {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.total_tokens,
        }
        return response

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        body = self._body
        return {
            "id": f"resp_{self._request_id}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": {},
            "model": self._model,
            "output": output,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "store": False,
            "temperature": body.temperature,
            "tool_choice": "auto" if bytes(body.tool_choice) == b"null" else body.tool_choice,
            "tools": body.tools or [],
            "top_p": body.top_p,
            "usage": None,
        }

    def _item(self, block: Block, status: str) -> dict[str, Any]:
        item: dict[str, Any] = {"id": f"{_PREFIXES[block.kind]}_{self._request_id}_{block.index}", "status": status}
        if block.kind is Kind.CALL:
            return item | {"type": "function_call", "call_id": block.id, "name": block.name, "arguments": block.text}
        parts = [] if status == "in_progress" else [_part(block)]
        if block.kind is Kind.REASONING:
            return item | {"type": "reasoning", "summary": [], "content": parts}
        return item | {"type": "message", "role": "assistant", "content": parts}

    def _all(self, changes: Iterator[tuple[Change, Block, str]], ended: str = "completed") -> bytes:
        return b"".join(self._change(*change, ended) for change in changes)

    def _change(self, what: Change, block: Block, piece: str, ended: str) -> bytes:
        """The events of one change; text and thoughts are the one part of their item, which ends as `ended` says."""
        part = {} if block.kind is Kind.CALL else {"content_index": 0}
        at = {"item_id": self._item(block, "")["id"], "output_index": block.index, **part}
        if what is Change.MORE:
            return self._event(f"response.{_KINDS[block.kind]}.delta", **at, delta=piece, **_logprobs(block))
        if what is Change.BEGUN:
            item = self._item(block, "in_progress")
            begun = self._event("response.output_item.added", output_index=block.index, item=item)
            return begun + (self._event("response.content_part.added", **at, part=_part(block)) if part else b"")
        whole = {"text": block.text} if part else {"arguments": block.text, "name": block.name}
        done = self._event(f"response.{_KINDS[block.kind]}.done", **at, **whole, **_logprobs(block))
        done += self._event("response.content_part.done", **at, part=_part(block)) if part else b""
        item = self._item(block, ended if block.stands else "incomplete")
        return done + self._event("response.output_item.done", output_index=block.index, item=item)

    def _event(self, kind: str, **fields: Any) -> bytes:
        number = self._sequence
        self._sequence += 1
        return named_event(kind, {"sequence_number": number, **fields})


def _part(block: Block) -> dict[str, Any]:
    if block.kind is Kind.REASONING:
        return {"type": "reasoning_text", "text": block.text}
    return {"type": "output_text", "text": block.text, "annotations": []}


def _logprobs(block: Block) -> dict[str, Any]:
    return {"logprobs": []} if block.kind is Kind.TEXT else {}
