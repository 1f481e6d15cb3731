"""Calls of which each part stands between marks of its own, as DeepSeek and Kimi write them."""

from polyfleet.text.answer import json_reader
from polyfleet.text.answer.calls import Calls
from polyfleet.text.answer.source import NotACall, Reading, Source

DEEPSEEK_MARKS = ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>")
KIMI_MARKS = ("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>")

# How grammars write a call, see ToolFormat.
DEEPSEEK_FENCED = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>$N\n```json\n$A\n```<｜tool▁call▁end｜>"
DEEPSEEK_PLAIN = "<｜tool▁call▁begin｜>$N<｜tool▁sep｜>$A<｜tool▁call▁end｜>"
KIMI_CALL = "<|tool_call_begin|>functions.$N:$D<|tool_call_argument_begin|>$A<|tool_call_end|>"


def deepseek_calls(source: Source, calls: Calls) -> Reading[None]:
    """With the name behind the kind and the arguments in a fenced block, or with the name alone."""
    begin, separator, end = DEEPSEEK_MARKS
    yield from source.space()
    while (yield from source.maybe(begin)):
        name = (yield from source.until(separator)).strip()
        fenced = name == "function"
        if fenced:
            name = (yield from source.until("\n")).strip()
            yield from source.literal("```json")
        yield from _arguments(source, calls, name)
        if fenced:
            yield from source.literal("```")
        yield from source.maybe(end)
        yield from source.space()


def kimi_calls(source: Source, calls: Calls) -> Reading[None]:
    """With an id that holds the name, `functions.NAME:NUMBER`; the model wants that id back in its history."""
    begin, separator, end = KIMI_MARKS
    yield from source.space()
    while (yield from source.maybe(begin)):
        call_id = (yield from source.until(separator)).strip()
        name = call_id.removeprefix("functions.").rpartition(":")[0] or call_id
        yield from _arguments(source, calls, name, call_id)
        yield from source.maybe(end)
        yield from source.space()


def _arguments(source: Source, calls: Calls, name: str, call_id: str = "") -> Reading[None]:
    yield from source.space()
    calls.check(name)
    if (yield from source.peek()) != "{":
        raise NotACall
    calls.begin(name, call_id)
    yield from json_reader.value(source, calls.argument)
    yield from source.space()
