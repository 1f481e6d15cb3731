"""Turns of Anthropic's `POST /v1/messages`, and the messages that they mean: a turn with tools' results is several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from polyfleet.gateway.http.names import Placed
from polyfleet.gateway.http.stated import Content
from polyfleet.wire.images import Image, image_of_base64, image_of_url
from polyfleet.wire.limits import FieldError
from polyfleet.wire.requests import Message
from polyfleet.wire.tools import ToolCall


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


def placed(system: str | list[TextBlock] | None, turns: Sequence[Turn]) -> list[Placed]:
    """The messages of a chat, each with its place. Raises FieldError."""
    found = []
    if system:
        said = _content(system, "system")
        found.append(Placed(Message("system", said.value), "system", "system", said.places))
    for index, turn in enumerate(turns):
        found += _turn(turn, f"messages[{index}]")
    return found


def _turn(turn: Turn, path: str) -> list[Placed]:
    role = f"{path}.role"
    if isinstance(turn.content, str):
        return [Placed(Message(turn.role, turn.content), path, role)]
    said = Content.of(_shown(turn.content, f"{path}.content"))
    calls = tuple(
        ToolCall(each.id, each.name, msgspec.json.encode(each.input).decode())
        for each in turn.content
        if isinstance(each, ToolUseBlock)
    )
    thoughts = "\n".join(each.thinking for each in turn.content if isinstance(each, ThinkingBlock))
    messages = [
        _result(each, f"{path}.content[{index}]")
        for index, each in enumerate(turn.content)
        if isinstance(each, ToolResultBlock)
    ]
    if said.value or calls or not messages:
        content = said.value or (None if calls else "")
        message = Message(turn.role, content, tool_calls=calls, reasoning=thoughts)
        messages.append(Placed(message, path, role, said.places))
    return messages


def _result(block: ToolResultBlock, path: str) -> Placed:
    said = _content(block.content, f"{path}.content")
    return Placed(Message("tool", said.value, tool_call_id=block.tool_use_id), path, path, said.places)


def _content(content: str | Sequence[ContentBlock], path: str) -> Content:
    return Content(content) if isinstance(content, str) else Content.of(_shown(content, path))


def _shown(content: Sequence[ContentBlock], path: str) -> list[tuple[str, str | Image]]:
    """What its blocks say and show."""
    return [
        (f"{path}[{index}].text", each.text)
        if isinstance(each, TextBlock)
        else _image(each.source, f"{path}[{index}].source")
        for index, each in enumerate(content)
        if isinstance(each, TextBlock | ImageBlock)
    ]


def _image(source: ImageSource, path: str) -> tuple[str, Image]:
    if source.type == "url":
        return f"{path}.url", image_of_url(source.url, f"{path}.url")
    if source.type != "base64":
        raise FieldError(f"{path}.type", f"must be base64 or url, not {source.type:.40}")
    if source.data is None:
        raise FieldError(f"{path}.data", "is missing")
    return f"{path}.data", image_of_base64(source.data, f"{path}.data")
