"""Body of Anthropic's `POST /v1/messages`, and the request that it means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from polyfleet.gateway.http.bodies import NOTHING, Ignored, Strict, Unsupported
from polyfleet.gateway.http.openai import response_format
from polyfleet.gateway.http.openai.translate import template_arguments
from polyfleet.gateway.http.stated import Placed, function_json, one_or_all, renames_of, sampling_of, stated
from polyfleet.wire.images import Image, image_of_base64, image_of_url
from polyfleet.wire.limits import MAX_MESSAGES, FieldError, check_count
from polyfleet.wire.requests import GenerateRequest, Message, TokenizeRequest
from polyfleet.wire.structure import Structure
from polyfleet.wire.tools import ToolCall

GOES_ON = {"continue_final_message": True}  # of the chat template's variables


class TextBlock(msgspec.Struct, tag="text"):
    """What is said."""

    text: str


class ImageSource(msgspec.Struct):
    """The bytes of an image in base64, or its URL; they themselves say what they are, whatever `media_type` says."""

    type: str
    data: str | None = None
    url: str | None = None


class ImageBlock(msgspec.Struct, tag="image"):
    """What is shown."""

    source: ImageSource


class ThinkingBlock(msgspec.Struct, tag="thinking"):
    """What was thought."""

    thinking: str


class RedactedThinkingBlock(msgspec.Struct, tag="redacted_thinking"):
    """What another server's model thought, sealed: nothing that could be told."""


class ToolUseBlock(msgspec.Struct, tag="tool_use"):
    """A call."""

    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(msgspec.Struct, tag="tool_result"):
    """What a tool gave back."""

    tool_use_id: str
    content: str | list[TextBlock | ImageBlock] = ""
    is_error: bool = False


ContentBlock = TextBlock | ImageBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock


class Turn(msgspec.Struct):
    """A message."""

    role: Literal["user", "assistant", "system"]
    content: str | list[ContentBlock]

    @property
    def is_begun(self) -> bool:
        """Whether it is the assistant's own, which ends with a text: the answer goes on from there."""
        last = self.content if isinstance(self.content, str) else self.content[-1] if self.content else ""
        text = last.text if isinstance(last, TextBlock) else last if isinstance(last, str) else ""
        return self.role == "assistant" and bool(text.strip())


class ToolBody(msgspec.Struct):
    """A tool; what else may be said of one changes nothing here."""

    name: str
    input_schema: msgspec.Raw = NOTHING
    description: str | None = None
    type: str | None = None
    strict: bool | None = None


class ToolChoiceBody(msgspec.Struct):
    """Which tools have to be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class ThinkingBody(msgspec.Struct):
    """Whether to think; of how many tokens changes nothing here."""

    type: str


class FormatBody(msgspec.Struct):
    """What the text has to be."""

    type: str
    schema: msgspec.Raw = NOTHING


class OutputBody(msgspec.Struct):
    """What the text has to be, and how much to think."""

    format: FormatBody | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class CountBody(Strict, frozen=True, kw_only=True):
    """Body of `POST /v1/messages/count_tokens`, and what a message is made of."""

    messages: list[Turn]
    model: str | None = None
    system: str | list[TextBlock] | None = None
    tools: list[ToolBody] | None = None
    tool_choice: ToolChoiceBody | None = None
    thinking: ThinkingBody | None = None
    output_config: OutputBody | None = None
    # Without effect.
    cache_control: Ignored = NOTHING
    speed: Ignored = NOTHING
    # Not supported.
    context_management: Unsupported = NOTHING
    mcp_servers: Unsupported = NOTHING
    thread: Unsupported = NOTHING

    @property
    def variables(self) -> str:
        """The chat template's, as JSON: whether to think, how much, and whether the last turn is the answer begun."""
        goes_on = GOES_ON if self.messages and self.messages[-1].is_begun else {}
        if self.thinking is not None and self.thinking.type == "disabled":
            return template_arguments(NOTHING, "none", **goes_on)
        effort = self.output_config.effort if self.output_config else None
        return template_arguments(NOTHING, "xhigh" if effort == "max" else effort, **goes_on)


class MessagesBody(CountBody, frozen=True, kw_only=True):
    """Body of `POST /v1/messages`."""

    max_tokens: int
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    # Without effect.
    diagnostics: Ignored = NOTHING
    inference_geo: Ignored = NOTHING
    metadata: Ignored = NOTHING
    service_tier: Ignored = NOTHING
    user_profile_id: Ignored = NOTHING
    workspace_id: Ignored = NOTHING
    # Not supported.
    container: Unsupported = NOTHING


RENAMES = {
    "stop": "stop_sequences",
    "tool_names": "tool_choice",
    "text": "messages",
    "structure": "output_config.format",
}


def messages_request(body: MessagesBody, request_id: str) -> GenerateRequest:
    """The request of a message. Raises FieldError."""
    choice = body.tool_choice or ToolChoiceBody("auto")
    if choice.type == "tool" and not choice.name:
        raise FieldError("tool_choice.name", "is missing")
    return GenerateRequest(
        model=body.model or "",
        messages=chat_messages(body),
        structure=_structure(body),
        **sampling_of(stated(body, ("temperature", "top_p", "top_k"))),
        max_tokens=body.max_tokens,
        stop=tuple(body.stop_sequences or ()),
        tools=tool_definitions(body),
        tool_choice={"any": "required", "tool": "required"}.get(choice.type, choice.type),
        tool_names=(choice.name,) if choice.type == "tool" and choice.name else (),
        template_arguments=body.variables,
        parallel_tool_calls=not choice.disable_parallel_tool_use,
        request_id=request_id,
    )


def count_request(body: CountBody) -> TokenizeRequest:
    """The same, to be counted alone. Raises FieldError."""
    return TokenizeRequest(
        body.model or "",
        messages=chat_messages(body),
        tools=tool_definitions(body),
        template_arguments=body.variables,
    )


def chat_messages(body: CountBody) -> tuple[Message, ...]:
    """The chat's messages, the system's text first. Raises FieldError."""
    check_count("messages", len(body.messages), MAX_MESSAGES)
    if not body.messages:
        raise FieldError("messages", "must hold at least one message")
    return tuple(message for _, message in _placed(body))


def renames(body: CountBody) -> dict[str, str]:
    """What the body calls the core's fields, its messages one by one."""
    return RENAMES | renames_of(_placed(body))


def _placed(body: CountBody) -> Placed:
    messages = [("system", Message("system", _parts(body.system, "system")))] if body.system else []
    for index, turn in enumerate(body.messages):
        place = f"messages[{index}]"
        messages += [(place, message) for message in _turn(turn, f"{place}.content")]
    return messages


def _structure(body: MessagesBody) -> Structure | None:
    form = body.output_config.format if body.output_config else None
    if form is None:
        return None
    return response_format.of_type(form.type, form.schema, "output_config.format", "output_config.format.schema")


def tool_definitions(body: CountBody) -> tuple[str, ...]:
    """Tools as JSON, in OpenAI's form. Raises FieldError."""
    definitions = []
    for index, tool in enumerate(body.tools or ()):
        if tool.type not in (None, "custom"):
            raise FieldError(f"tools[{index}].type", f"must be custom, not {tool.type:.40}")
        definitions.append(function_json(tool.name, tool.description, tool.input_schema, tool.strict))
    return tuple(definitions)


def _turn(turn: Turn, path: str) -> list[Message]:
    if isinstance(turn.content, str):
        return [Message(turn.role, turn.content)]
    parts = _shown(turn.content, path)
    calls = tuple(
        ToolCall(each.id, each.name, msgspec.json.encode(each.input).decode())
        for each in turn.content
        if isinstance(each, ToolUseBlock)
    )
    thoughts = "\n".join(each.thinking for each in turn.content if isinstance(each, ThinkingBlock))
    messages = [
        Message("tool", _parts(each.content, f"{path}[{index}].content"), tool_call_id=each.tool_use_id)
        for index, each in enumerate(turn.content)
        if isinstance(each, ToolResultBlock)
    ]
    if parts or calls or not messages:
        content = one_or_all(parts) or (None if calls else "")
        messages.append(Message(turn.role, content, tool_calls=calls, reasoning=thoughts))
    return messages


def _image(source: ImageSource, path: str) -> Image:
    if source.type == "url":
        return image_of_url(source.url, f"{path}.url")
    if source.type != "base64":
        raise FieldError(f"{path}.type", f"must be base64 or url, not {source.type:.40}")
    if source.data is None:
        raise FieldError(f"{path}.data", "is missing")
    return image_of_base64(source.data, f"{path}.data")


def _parts(content: str | Sequence[ContentBlock], path: str) -> str | tuple[str | Image, ...]:
    return content if isinstance(content, str) else one_or_all(_shown(content, path))


def _shown(content: Sequence[ContentBlock], path: str) -> list[str | Image]:
    """What its blocks say and show."""
    return [
        each.text if isinstance(each, TextBlock) else _image(each.source, f"{path}[{index}].source")
        for index, each in enumerate(content)
        if isinstance(each, TextBlock | ImageBlock)
    ]
