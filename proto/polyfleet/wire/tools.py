"""Tools that a model may call: how they are told to it, and its calls, whole and in parts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from polyfleet.wire.json_text import read_object
from polyfleet.wire.limits import FieldError

MAX_TOOLS = 128
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
CHOICES = ("auto", "none", "required")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of an answer, or of a chat so far. `arguments` is JSON text, an object's if all is well."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """An increment of a choice's call number `index`: id and name come once, with its first one.

    `withdrawn`: what began as a call is none after all, and comes as text.
    """

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""
    withdrawn: bool = False


class GatheredCalls:
    """The calls of one choice, put together."""

    def __init__(self) -> None:
        self._calls: dict[int, ToolCall] = {}

    def add(self, delta: ToolCallDelta) -> None:
        """Take an increment."""
        if delta.withdrawn:
            self._calls.pop(delta.index, None)
            return
        before = self._calls.get(delta.index) or ToolCall("", "", "")
        whole = before.id + delta.id, before.name + delta.name, before.arguments + delta.arguments
        self._calls[delta.index] = ToolCall(*whole)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """Those that stand, in their order."""
        return tuple(call for _, call in sorted(self._calls.items()))


@dataclass(frozen=True)
class Tool:
    """One tool of a request. `definition` is OpenAI's object, as chat templates get it."""

    name: str
    definition: Mapping[str, Any]

    @cached_property
    def parameters(self) -> Mapping[str, Any]:
        """The JSON Schema of its arguments; of one without parameters, of an object without properties."""
        found = self.definition["function"].get("parameters")
        return found or {"type": "object", "properties": {}, "additionalProperties": False}

    @cached_property
    def strict(self) -> bool:
        """Whether its arguments have to keep to the schema."""
        return self.definition["function"].get("strict") is True


def read_tools(definitions: Sequence[str], names: Sequence[str] = ()) -> tuple[Tool, ...]:
    """The tools of these JSON texts, of which only those of these names count (none: all). Raises FieldError."""
    tools = tuple(_tool(text, f"tools[{index}]") for index, text in enumerate(definitions))
    known = {tool.name for tool in tools}
    if len(known) < len(tools):
        raise FieldError("tools", "must have different names")
    for name in names:
        if name not in known:
            raise FieldError("tool_names", f"names none of the tools: {name!r:.80}")
    return tuple(tool for tool in tools if tool.name in names) if names else tools


def _tool(text: str, path: str) -> Tool:
    definition = read_object(text, path)
    if definition.get("type") != "function":
        raise FieldError(f"{path}.type", "must be function")
    function = definition.get("function")
    if not isinstance(function, dict):
        raise FieldError(f"{path}.function", "must be an object")
    name = function.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        given = f"not {name!r:.80}" if name is not None else "and is missing"
        raise FieldError(f"{path}.function.name", f"must be 1 to 64 of the characters A-Z a-z 0-9 _ -, {given}")
    kinds: Mapping[str, type] = {"description": str, "parameters": dict, "strict": bool}
    for key, kind in kinds.items():
        if not isinstance(function.get(key), (kind, type(None))):
            raise FieldError(f"{path}.function.{key}", f"must be {_SAID[kind]}")
    kind_of_arguments = (function.get("parameters") or {}).get("type", "object")
    if kind_of_arguments != "object":
        raise FieldError(f"{path}.function.parameters.type", f"must be object, not {kind_of_arguments!r:.80}")
    return Tool(name, definition)


_SAID = {str: "a text", dict: "a JSON Schema, which is an object", bool: "true or false"}
