"""Tools for models whose chat template knows of none, or of definitions alone: called and answered in plain text."""

import json
from collections.abc import Collection, Sequence
from dataclasses import replace

from polyfleet.wire.requests import Message
from polyfleet.wire.tools import ToolCall

_INTRODUCTION = """You can call functions. These are their definitions, a JSON object a line:
<tools>
{tools}
</tools>
To call a function, answer with its name and its arguments, as a JSON object between these tags:
<tool_call>
{{"name": "the function's name", "arguments": {{"an argument's name": "its value"}}}}
</tool_call>
Several calls are several such objects, each between tags of its own. What a function returns comes between
<tool_response> and </tool_response>."""


def plain_chat(messages: Sequence[Message], tools: Sequence[str], left_out: Collection[str]) -> list[Message]:
    """The chat with tools, calls and their results as text. `left_out`: roles that the template does not take."""
    plain: list[Message] = []
    for message in messages:
        if message.role == "tool":
            message = Message("user", f"<tool_response>\n{_text(message)}\n</tool_response>")
            if plain and plain[-1].role == "user" and _text(plain[-1]).startswith("<tool_response>"):
                message = replace(message, content=f"{_text(plain.pop())}\n{message.content}")
        elif message.tool_calls:
            said = [_text(message)] if _text(message) else []
            message = replace(message, content="\n".join([*said, *map(_spelled, message.tool_calls)]), tool_calls=())
        plain.append(message)
    return _introduced(plain, tools, left_out) if tools else plain


def phi_chat(messages: Sequence[Message]) -> list[Message]:
    """The chat with calls as text, as Phi writes them."""
    return [
        replace(
            each,
            content=f"{_text(each)}<|tool_call|>[{', '.join(map(_object, each.tool_calls))}]<|/tool_call|>",
            tool_calls=(),
        )
        if each.tool_calls
        else each
        for each in messages
    ]


def _introduced(messages: list[Message], tools: Sequence[str], left_out: Collection[str]) -> list[Message]:
    """The chat with what the model has to know of the tools before everything else."""
    introduction = _INTRODUCTION.format(tools="\n".join(json.dumps(json.loads(each)["function"]) for each in tools))
    role = "user" if "system" in left_out else "system"
    if messages and messages[0].role == role:
        beginning, first = f"{introduction}\n\n", messages[0]
        first = replace(first, content=(beginning, *first.parts) if first.images else beginning + _text(first))
        return [first, *messages[1:]]
    return [Message(role, introduction), *messages]


def _text(message: Message) -> str:
    return "\n".join(message.texts)


def _spelled(call: ToolCall) -> str:
    return f"<tool_call>\n{_object(call)}\n</tool_call>"


def _object(call: ToolCall) -> str:
    return f'{{"name": {json.dumps(call.name, ensure_ascii=False)}, "arguments": {call.arguments or "{}"}}}'
