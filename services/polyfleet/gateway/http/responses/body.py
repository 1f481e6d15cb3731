"""Body of `POST /v1/responses`, and the request that it means. Nothing is stored, so nothing is gone on with by id."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import msgspec

from polyfleet.gateway.http.bodies import NOTHING, NULL, Effort, Ignored, StreamOptions, Strict, Unsupported
from polyfleet.gateway.http.decoding import STATELESS, decode_part, refuse_unsupported
from polyfleet.gateway.http.names import Placed, of_messages, of_structure
from polyfleet.gateway.http.openai import response_format, tool_choice
from polyfleet.gateway.http.openai.translate import TEXTS, template_arguments
from polyfleet.gateway.http.stated import Content, function_json, sampling_of, stated
from polyfleet.wire.images import Image, image_of_url
from polyfleet.wire.limits import MAX_MESSAGES, FieldError, check_count
from polyfleet.wire.requests import GenerateRequest, Message
from polyfleet.wire.structure import Structure
from polyfleet.wire.tools import MAX_TOOLS, ToolCall


class Part(msgspec.Struct):
    """A part of an item's content: `input_text`, `output_text`, `refusal` or `input_image`, by its URL."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None


class Item(msgspec.Struct):
    """An item of the input: a message, a call, what a call gave back, or what was thought."""

    type: str = "message"
    role: str | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None
    summary: list[Part] | None = None


class FunctionBody(msgspec.Struct):
    """A tool."""

    type: str
    name: str = ""
    description: str | None = None
    parameters: msgspec.Raw = NOTHING
    strict: bool | None = None


class TextBody(msgspec.Struct):
    """What the text has to be."""

    format: msgspec.Raw = NOTHING
    verbosity: Unsupported = NOTHING


class ReasoningBody(msgspec.Struct):
    """How much to think; how thoughts are told changes nothing here."""

    effort: Effort | None = None


class FormatBody(msgspec.Struct):
    """A format, with the schema beside its type."""

    type: str
    schema: msgspec.Raw = NOTHING


class ResponsesBody(Strict, frozen=True, kw_only=True):
    """Body of `POST /v1/responses`."""

    input: str | list[Item]
    model: str | None = None
    instructions: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: list[FunctionBody] | None = None
    tool_choice: msgspec.Raw = NOTHING
    parallel_tool_calls: bool | None = None
    text: TextBody | None = None
    reasoning: ReasoningBody | None = None
    store: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    include: list[str] | None = None  # that of logprobs alone would add to what is told
    # Without effect.
    metadata: Ignored = NOTHING
    prompt_cache_key: Ignored = NOTHING
    prompt_cache_options: Ignored = NOTHING
    prompt_cache_retention: Ignored = NOTHING
    safety_identifier: Ignored = NOTHING
    service_tier: Ignored = NOTHING
    user: Ignored = NOTHING
    # Not supported.
    background: Unsupported = NOTHING
    context_management: Unsupported = NOTHING
    conversation: Unsupported = NOTHING
    max_tool_calls: Unsupported = NOTHING
    moderation: Unsupported = NOTHING
    previous_response_id: Unsupported = NOTHING
    top_logprobs: Unsupported = NOTHING


LOGPROBS = "message.output_text.logprobs"
NAMES = {
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "text": "input",
    **of_structure("text.format"),
    "structure.json_schema": "text.format.schema",
    "tool_names": "tool_choice",
    "tools[*].function": "tools[*]",
}


def responses_request(body: ResponsesBody, request_id: str) -> GenerateRequest:
    """The request of a response. Raises FieldError."""
    if body.store:
        raise FieldError("store", f"can't be true: this server keeps no responses; {STATELESS}")
    if LOGPROBS in (body.include or ()):
        raise FieldError("include", f"can't have {LOGPROBS}: this server tells logprobs in chats and completions alone")
    if body.text is not None:
        refuse_unsupported(body.text, "text.")
    choice, names = tool_choice.read(body.tool_choice)
    check_count("tools", len(body.tools or ()), MAX_TOOLS)
    return GenerateRequest(
        model=body.model or "",
        messages=tuple(each.message for each in _placed(body)),
        **sampling_of(stated(body, ("temperature", "top_p"))),
        max_tokens=body.max_output_tokens,
        tools=tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(body.tools or ())),
        tool_choice=choice,
        tool_names=names,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        structure=_structure(body),
        template_arguments=template_arguments(NOTHING, body.reasoning.effort if body.reasoning else None),
        request_id=request_id,
    )


def _structure(body: ResponsesBody) -> Structure | None:
    if body.text is None or bytes(body.text.format) == NULL:
        return None
    form = decode_part(body.text.format, FormatBody, "text.format")
    return response_format.of_type(form.type, form.schema, "text.format", "text.format.schema")


def _tool(tool: FunctionBody, path: str) -> str:
    if tool.type != "function":
        raise FieldError(f"{path}.type", f"must be function, not {tool.type:.40}")
    return function_json(tool.name, tool.description, tool.parameters, tool.strict)


def names(body: ResponsesBody) -> dict[str, str]:
    """What the body calls the core's fields, its messages one by one."""
    return NAMES | of_messages(_placed(body))


def _placed(body: ResponsesBody) -> list[Placed]:
    messages = []
    if body.instructions:
        messages.append(Placed(Message("system", body.instructions), "instructions", "instructions"))
    if isinstance(body.input, str):
        return [*messages, Placed(Message("user", body.input), "input", "input")]
    check_count("input", len(body.input), MAX_MESSAGES)
    if not body.input:
        raise FieldError("input", "must hold at least one item")
    thought = ""
    for index, item in enumerate(body.input):
        path = f"input[{index}]"
        if item.type == "reasoning":
            thought = "".join(part.text or "" for part in item.content or item.summary or () if isinstance(part, Part))
        elif item.type == "message":
            messages.append(_message(item, path, thought))
            thought = ""
        elif item.type == "function_call":
            _add_call(messages, item, path, thought)
            thought = ""
        elif item.type == "function_call_output":
            messages.append(_result(item, path))
        else:
            raise FieldError(f"{path}.type", f"is not supported by this server{_why(item.type)}: {item.type:.40}")
    return messages


def _why(kind: str) -> str:
    """What to do in place of an item that would have to be known here."""
    return ", which keeps no items; send the item itself" if kind == "item_reference" else ""


def _message(item: Item, path: str, thought: str) -> Placed:
    role = "system" if item.role == "developer" else item.role or ""
    said = _content(item.content, f"{path}.content")
    message = Message(role, said.value, reasoning=thought if role == "assistant" else "")
    return Placed(message, path, f"{path}.role", said.places)


def _result(item: Item, path: str) -> Placed:
    if not item.call_id:
        raise FieldError(f"{path}.call_id", "is missing")
    said = _content(item.output, f"{path}.output")
    return Placed(Message("tool", said.value, tool_call_id=item.call_id), path, path, said.places)


def _add_call(messages: list[Placed], item: Item, path: str, thought: str) -> None:
    """A call joins the assistant's message before it, as chats have them."""
    if not item.name:
        raise FieldError(f"{path}.name", "is missing")
    call = ToolCall(item.call_id or item.id or "", item.name, item.arguments or "{}")
    last = messages[-1] if messages else None
    if last is not None and last.message.role == "assistant":
        calls = (*last.message.tool_calls, call)
        messages[-1] = last._replace(message=replace(last.message, tool_calls=calls))
    else:
        messages.append(Placed(Message("assistant", None, tool_calls=(call,), reasoning=thought), path, path))


def _content(content: str | list[Part] | None, path: str) -> Content:
    if isinstance(content, str):
        return Content(content)
    parts: list[tuple[str, str | Image]] = []
    for index, part in enumerate(content or ()):
        if part.type == "input_image":
            place = f"{path}[{index}].image_url"
            parts.append((place, image_of_url(part.image_url, place)))
            continue
        text = getattr(part, TEXTS.get(part.type, ""), None)
        if text is None:
            raise FieldError(
                f"{path}[{index}].type", f"must be input_text, output_text or input_image, not {part.type:.40}"
            )
        parts.append((f"{path}[{index}].{TEXTS[part.type]}", text))
    return Content.of(parts)
