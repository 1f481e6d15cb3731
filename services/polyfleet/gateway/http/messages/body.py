"""Body of Anthropic's `POST /v1/messages`, and the request that it means."""

from __future__ import annotations

from typing import Literal

import msgspec

from polyfleet.gateway.http.bodies import NOTHING, Ignored, Strict, Unsupported
from polyfleet.gateway.http.messages.turns import TextBlock, Turn, placed
from polyfleet.gateway.http.names import of_messages
from polyfleet.gateway.http.openai import response_format
from polyfleet.gateway.http.openai.translate import template_arguments
from polyfleet.gateway.http.stated import function_json, sampling_of, stated
from polyfleet.wire.limits import MAX_MESSAGES, FieldError, check_count
from polyfleet.wire.requests import GenerateRequest, Message, TokenizeRequest
from polyfleet.wire.structure import Structure

GOES_ON = {"continue_final_message": True}  # of the chat template's variables


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

    type: Literal["enabled", "adaptive", "disabled"]


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


NAMES = {
    "stop": "stop_sequences",
    "structure": "output_config.format",
    "structure.json_schema": "output_config.format.schema",
    "tool_names": "tool_choice.name",
    "tools[*].function": "tools[*]",
    "tools[*].function.parameters": "tools[*].input_schema",
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
    return tuple(each.message for each in placed(body.system, body.messages))


def names(body: CountBody) -> dict[str, str]:
    """What the body calls the core's fields, its messages one by one."""
    return NAMES | of_messages(placed(body.system, body.messages))


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
