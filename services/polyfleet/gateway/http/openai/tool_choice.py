"""OpenAI's `tool_choice`, in the forms that its clients send."""

from typing import Literal

import msgspec

from polyfleet.gateway.http.bodies import NULL
from polyfleet.gateway.http.decoding import decode_part
from polyfleet.wire.limits import FieldError


class NamedFunction(msgspec.Struct, frozen=True):
    """Names a tool."""

    name: str


class ToolName(msgspec.Struct, frozen=True):
    """A tool, as chats name it, or with the name beside the type."""

    type: Literal["function"]
    function: NamedFunction | None = None
    name: str | None = None

    @property
    def said(self) -> str:
        """The name."""
        return self.function.name if self.function else self.name or ""


class AllowedTools(msgspec.Struct, frozen=True):
    """Some of the tools: within a chat's `allowed_tools`, or beside the type, as Responses have it."""

    mode: Literal["auto", "required"]
    tools: list[ToolName]


def read(value: msgspec.Raw, field: str = "tool_choice") -> tuple[str, tuple[str, ...]]:
    """`tool_choice` and `tool_names` of a GenerateRequest. Raises FieldError."""
    if bytes(value) == NULL:
        return "", ()
    if bytes(value)[:1] != b"{":
        return decode_part(value, Literal["none", "auto", "required"], field), ()  # type: ignore[arg-type]
    kind = decode_part(value, _Typed, field).type
    if kind == "function":
        return "required", (_named(decode_part(value, ToolName, field), field),)
    if kind != "allowed_tools":
        raise FieldError(f"{field}.type", f"must be function or allowed_tools, not {kind!r:.40}")
    nested = decode_part(value, _Allowed, field).allowed_tools
    allowed, path = (nested, f"{field}.allowed_tools") if nested else (decode_part(value, AllowedTools, field), field)
    if not allowed.tools:
        raise FieldError(f"{path}.tools", "must name at least one tool")
    return allowed.mode, tuple(_named(each, f"{path}.tools") for each in allowed.tools)


class _Typed(msgspec.Struct, frozen=True):
    type: str


class _Allowed(msgspec.Struct, frozen=True):
    allowed_tools: AllowedTools | None = None


def _named(tool: ToolName, field: str) -> str:
    if not tool.said:
        raise FieldError(f"{field}.function.name", "is missing")
    return tool.said
