"""How families of models write calls. Behind an opening, what a call looks like tells how to read it."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from polyfleet.text.answer import json_reader
from polyfleet.text.answer.calls import Calls, as_object
from polyfleet.text.answer.marked_calls import (
    DEEPSEEK_FENCED,
    DEEPSEEK_MARKS,
    DEEPSEEK_PLAIN,
    KIMI_CALL,
    KIMI_MARKS,
    deepseek_calls,
    kimi_calls,
)
from polyfleet.text.answer.python_calls import python_calls
from polyfleet.text.answer.source import NotACall, Reading, Source

PLUGIN = "<|plugin|>"
_NAME = re.compile(r"[^\s{\[<(]+")
_CALL_ID = re.compile(r"[0-9A-Za-z]+")
_ARGUMENTS = ("arguments", "parameters")
_BESIDE = ("id", "type", "index")  # what else some write

Body = Callable[[Source, Calls], Reading[None]]


def written(source: Source, calls: Calls) -> Reading[None]:
    """A JSON list of calls, or one of Python's; one or several JSON objects; `name{…}`; or tags for all parts."""
    yield from source.space()
    first = yield from source.peek()
    if first == "[" and (yield from _is_python(source)):
        yield from python_calls(source, calls)
    elif first == "[":
        separator = source.take(1)
        while separator != "]":
            yield from _object(source, calls)
            separator = yield from json_reader.behind_item(source, _ignore, "]")
    elif first == "{":
        yield from _objects(source, calls)
    elif first == "<":
        yield from _function_tags(source, calls)
    else:
        yield from _named(source, calls)
    yield from source.space()


def plugin_calls(source: Source, calls: Calls) -> Reading[None]:
    """Behind a mark that tells them from other actions, as code to run."""
    yield from source.literal(PLUGIN)
    yield from written(source, calls)


def _is_python(source: Source) -> Reading[bool]:
    """Whether a list is one of names, not of objects."""
    while not source.held[1:].strip() and not source.ended:
        yield
    return source.held[1:].strip()[:1] not in ("", "{", "]")


def _objects(source: Source, calls: Calls) -> Reading[None]:
    while True:
        yield from _object(source, calls)
        yield from source.space()
        separator = (yield from source.maybe(";")) or (yield from source.maybe(","))
        if not separator and not (yield from source.begins("{")):
            return


def _object(source: Source, calls: Calls) -> Reading[None]:
    """`{"name": …, "arguments": …}`, whose members may come in any order."""
    name, arguments, begun, separator = "", "", False, ""
    yield from source.space()
    yield from source.literal("{")
    while separator != "}":
        key_parts: list[str] = []
        yield from json_reader.key(source, key_parts.append)
        key = json.loads("".join(key_parts).strip().removesuffix(":"))
        yield from source.space()
        if key == "name":
            name = yield from json_reader.text_of(source)
            calls.check(name)
        elif key in _ARGUMENTS and name and not begun and (yield from source.peek()) == "{":
            begun = True
            calls.begin(name)
            yield from json_reader.value(source, calls.argument)
        elif key in _ARGUMENTS:
            arguments = yield from json_reader.whole(source)
        elif key in _BESIDE:
            yield from json_reader.value(source, _ignore)
        else:
            raise NotACall
        separator = yield from json_reader.behind_item(source, _ignore, "}")
    if not begun:
        _call(calls, name, as_object(arguments))


def _named(source: Source, calls: Calls) -> Reading[None]:
    """`name{…}`, `name[ARGS]{…}`, or a name and tags for each argument."""
    name = yield from source.matching(_NAME)
    calls.check(name)
    if (yield from source.maybe("[CALL_ID]")):
        yield from source.matching(_CALL_ID)
    yield from source.maybe("[ARGS]")
    yield from source.space()
    if (yield from source.begins("{")):
        calls.begin(name)
        yield from json_reader.value(source, calls.argument)
        return
    found: dict[str, str] = {}
    while (yield from source.maybe("<arg_key>")):
        key = (yield from source.until("</arg_key>")).strip()
        yield from source.space()
        yield from source.literal("<arg_value>")
        found[key] = _argument(calls, name, key, (yield from source.until("</arg_value>")))
        yield from source.space()
    if not (source.ended or (yield from source.begins("</tool_call>"))):
        raise NotACall
    _call(calls, name, _spelled(found))


def _function_tags(source: Source, calls: Calls) -> Reading[None]:
    """`<function=name><parameter=key>value</parameter>…</function>`."""
    yield from source.literal("<function=")
    name = (yield from source.until(">")).strip()
    calls.check(name)
    yield from source.space()
    found: dict[str, str] = {}
    while (yield from source.maybe("<parameter=")):
        key = (yield from source.until(">")).strip()
        text = yield from source.until("</parameter>")
        found[key] = _argument(calls, name, key, text.removeprefix("\n").removesuffix("\n"))
        yield from source.space()
    yield from source.literal("</function>")
    _call(calls, name, _spelled(found))


def _call(calls: Calls, name: str, arguments: str) -> None:
    calls.begin(name)
    calls.argument(arguments)


def _argument(calls: Calls, name: str, key: str, text: str) -> str:
    """An argument that was written as it is, as JSON: a string by its schema, or where it is nothing else."""
    if calls.is_text(name, key):
        return json.dumps(text, ensure_ascii=False)
    try:
        return json.dumps(json.loads(text), ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)


def _spelled(arguments: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{json.dumps(key, ensure_ascii=False)}: {text}" for key, text in arguments.items()) + "}"


def _ignore(piece: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A family's way. `openings` begin calls, `closing` ends them, where there is one.

    `known_by`: what else templates of the family spell. `bare`: an answer may begin with a call, without an opening.
    `inner`: what else may be written in special tokens.
    `spellings` of a call between opening and closing, for grammars: $N its name, $J that as JSON, $A its arguments,
    $D a number; none where no grammar tells them.
    """

    name: str
    openings: tuple[str, ...]
    closing: str = ""
    bare: bool = False
    short_ids: bool = False
    inner: tuple[str, ...] = ()
    known_by: tuple[str, ...] = ()
    body: Body = written
    spellings: tuple[str, ...] = ()

    @property
    def markers(self) -> tuple[str, ...]:
        """Spellings of what may be special tokens and has to be read all the same."""
        return (*self.openings, *((self.closing,) if self.closing else ()), *self.inner)


_OBJECT = '{"name": $J, "arguments": $A}'
_PARAMETERS = '{"name": $J, "parameters": $A}'
HERMES = ToolFormat("hermes", ("<tool_call>",), "</tool_call>", spellings=(f"\n{_OBJECT}\n",))
HARMONY = ToolFormat(  # read by ChannelParser
    "harmony",
    ("<|channel|>",),
    inner=("<|start|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"),
)
FORMATS: Mapping[str, ToolFormat] = {
    each.name: each
    for each in (
        HARMONY,
        ToolFormat(
            "deepseek",
            ("<｜tool▁calls▁begin｜>",),
            "<｜tool▁calls▁end｜>",
            inner=DEEPSEEK_MARKS,
            body=deepseek_calls,
            spellings=(DEEPSEEK_FENCED, DEEPSEEK_PLAIN),
        ),
        ToolFormat(
            "kimi",
            ("<|tool_calls_section_begin|>",),
            "<|tool_calls_section_end|>",
            inner=KIMI_MARKS,
            body=kimi_calls,
            spellings=(KIMI_CALL,),
        ),
        ToolFormat(
            "mistral",
            ("[TOOL_CALLS]",),
            short_ids=True,
            inner=("[ARGS]", "[CALL_ID]"),
            spellings=(f" [{_OBJECT}]", f"[{_OBJECT}]", "$N[ARGS]$A", "$N$A"),
        ),
        ToolFormat(
            "phi",
            ("<|tool_call|>", "functools"),  # the latter as Phi 4 mini writes a list of calls, too
            "<|/tool_call|>",
            known_by=("<|/tool|>",),
            spellings=(f"[{_OBJECT}]",),
        ),
        ToolFormat("minicpm", ("<|tool_call_start|>",), "<|tool_call_end|>", body=python_calls),
        ToolFormat("seed", ("<seed:tool_call>",), "</seed:tool_call>"),
        ToolFormat("hunyuan", ("<tool_calls>",), "</tool_calls>", spellings=(f"[{_OBJECT}]", f"\n[{_OBJECT}]\n")),
        ToolFormat("olmo", ("<function_calls>",), "</function_calls>", body=python_calls),
        ToolFormat("nemotron", ("<TOOLCALL>",), "</TOOLCALL>", spellings=(f"[{_OBJECT}]",)),
        ToolFormat("minitron", ("<toolcall>",), "</toolcall>", spellings=(f" {_OBJECT} ",)),
        ToolFormat(
            "internlm",
            ("<|action_start|>",),
            "<|action_end|>",
            inner=(PLUGIN,),
            body=plugin_calls,
            spellings=(f"{PLUGIN}\n{_PARAMETERS}", f"{PLUGIN}\n{_PARAMETERS}\n"),
        ),
        HERMES,
        ToolFormat("pythonic", ("<|python_start|>",), "<|python_end|>", bare=True),
        ToolFormat("llama", ("<|python_tag|>",), bare=True, spellings=(_PARAMETERS,)),
        ToolFormat("glm4", ("<|observation|>",), bare=True),
    )
}


def find_tool_format(template: str) -> ToolFormat:
    """The format whose opening the chat template spells, in the order of FORMATS; hermes where it spells none."""
    known = ((each, (*each.openings, *each.known_by)) for each in FORMATS.values())
    return next((each for each, marks in known if any(mark in template for mark in marks)), HERMES)
