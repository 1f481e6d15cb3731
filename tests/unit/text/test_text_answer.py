"""What a model thinks, says and calls is told apart, wherever its text is cut into pieces."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from polyfleet.text.answer.channels import ChannelParser
from polyfleet.text.answer.formats import FORMATS, find_tool_format
from polyfleet.text.answer.parser import REASONING_TAGS, AnswerParser, Tags
from polyfleet.wire.tools import Tool, ToolCallDelta, read_tools

WEATHER = {"city": {"type": "string"}, "days": {"type": "integer"}, "where": {"type": "object"}}
TOOLS = read_tools(
    [
        json.dumps({"type": "function", "function": {"name": name, "parameters": {"properties": WEATHER}}})
        for name in ("weather", "time")
    ]
)
PARIS = '{"city": "Pa\\"ris {é}", "days": 2}'
Call = tuple[str, str]


def parse(
    pieces: Sequence[str],
    family: str = "hermes",
    truncated: bool = False,
    tools: Sequence[Tool] = TOOLS,
    tags: Tags = REASONING_TAGS[0],
    **more: Any,
) -> tuple[str, str, list[Call]]:
    """Text, thoughts and the calls that stand, put together as a client does."""
    harmony = family == "harmony"
    parser = ChannelParser(tools) if harmony else AnswerParser(FORMATS[family], tools, tags, **more)
    text, thought, calls = "", "", dict[int, list[str]]()
    parts = [parser.add(piece) for piece in pieces] + [parser.finish(truncated=truncated)]
    for part in parts:
        text, thought = text + part.text, thought + part.reasoning
        for delta in part.tool_calls:
            if delta.withdrawn:
                del calls[delta.index]
                continue
            if delta.name:
                assert delta.index not in calls
                assert delta.id
                calls[delta.index] = [delta.name, ""]
            calls[delta.index][1] += delta.arguments
    assert parser.calls_tools == bool(calls)
    return text, thought, [(name, arguments) for name, arguments in calls.values()]


CASES: list[tuple[str, str, str, list[Call]]] = [
    (
        "hermes",
        f'Sure.\n<tool_call>\n{{"name": "weather", "arguments": {PARIS}}}\n</tool_call>',
        "Sure.",
        [("weather", PARIS)],
    ),
    (
        "hermes",
        '<tool_call>{"name": "weather", "arguments": {}}</tool_call>\n'
        '<tool_call>{"arguments": {"a": [1]}, "name": "time"}</tool_call>',
        "",
        [("weather", "{}"), ("time", '{"a": [1]}')],
    ),
    ("hermes", '<tool_call>{"name": "time"}</tool_call> Done.', " Done.", [("time", "{}")]),
    ("hermes", '<tool_call>{"name": "time", "arguments": null}', "", [("time", "{}")]),
    ("hermes", '<tool_call>{"name": "time", "arguments": "{\\"a\\": 1}"}', "", [("time", '{"a": 1}')]),
    (
        "hermes",
        "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
        "",
        [("weather", '{"city": "Paris", "days": 3}')],
    ),
    (
        "hermes",
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>12</arg_value>\n<arg_key>where</arg_key>\n"
        '<arg_value>{"x": 1}</arg_value>\n</tool_call>',
        "",
        [("weather", '{"city": "12", "where": {"x": 1}}')],
    ),
    ("hermes", "<tool_call>time</tool_call>", "", [("time", "{}")]),
    ("llama", f'{{"name": "weather", "parameters": {PARIS}}}', "", [("weather", PARIS)]),
    (
        "llama",
        '<|python_tag|>{"type": "function", "name": "time", "parameters": {}}; {"name": "weather", "parameters": {}}',
        "",
        [("time", "{}"), ("weather", "{}")],
    ),
    ("llama", '{"answer": 42}', '{"answer": 42}', []),
    ("llama", 'So {"name": "time", "parameters": {}}', 'So {"name": "time", "parameters": {}}', []),
    (
        "mistral",
        f'[TOOL_CALLS] [{{"name": "weather", "arguments": {PARIS}}}, {{"name": "time", "arguments": {{}}}}]',
        "",
        [("weather", PARIS), ("time", "{}")],
    ),
    (
        "mistral",
        f"Hm.[TOOL_CALLS]weather[ARGS]{PARIS}[TOOL_CALLS]time[CALL_ID]abcdefghi[ARGS]{{}}",
        "Hm.",
        [("weather", PARIS), ("time", "{}")],
    ),
    ("mistral", f"[TOOL_CALLS]weather{PARIS}", "", [("weather", PARIS)]),
    ("phi", f'<|tool_call|>[{{"name": "weather", "arguments": {PARIS}}}]<|/tool_call|>', "", [("weather", PARIS)]),
    ("phi", f'<|tool_call|>[{{"name": "time", "arguments": {PARIS}}}]', "", [("time", PARIS)]),  # as Granite writes
    ("phi", f'Hm. functools[{{"name": "time", "arguments": {PARIS}}}]', "Hm.", [("time", PARIS)]),
    ("phi", "Use functools.partial, or functools[1].", "Use functools.partial, or functools[1].", []),
    (
        "deepseek",
        "Look:<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
        f"{PARIS}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>time\n```json\n{{}}\n"
        "```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "Look:",
        [("weather", PARIS), ("time", "{}")],
    ),
    (
        "deepseek",
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{PARIS}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "",
        [("weather", PARIS)],
    ),
    ("glm4", f"weather\n{PARIS}", "", [("weather", PARIS)]),
    (
        "kimi",
        "Look:<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
        f"{PARIS}<|tool_call_end|><|tool_call_begin|>functions.time:1<|tool_call_argument_begin|>{{}}"
        "<|tool_call_end|><|tool_calls_section_end|>",
        "Look:",
        [("weather", PARIS), ("time", "{}")],
    ),
    (
        "internlm",
        f'Look:\n<|action_start|><|plugin|>\n{{"name": "weather", "parameters": {PARIS}}}<|action_end|>\n'
        '<|action_start|><|plugin|>{"name": "time", "parameters": {}}\n<|action_end|>\n',
        "Look:\n",
        [("weather", PARIS), ("time", "{}")],
    ),
    ("internlm", '<|action_start|><|plugin|>\n{"name": "time"}', "", [("time", "{}")]),
    *(
        ("internlm", text, text, [])
        for text in (
            "<|action_start|><|interpreter|>\nprint(1)<|action_end|>",
            '<|action_start|><|plugin|>\n{"name": "rain", "parameters": {}}<|action_end|>',
            "<|action_start|><|plu",
        )
    ),
    (
        "minicpm",
        "Hm.\n<|tool_call_start|>\n```python\nweather(city='Pa\"ris', days=-2, where={'x': [1, None]})\ntime()\n```\n"
        "<|tool_call_end|>",
        "Hm.",
        [("weather", '{"city": "Pa\\"ris", "days": -2, "where": {"x": [1, null]}}'), ("time", "{}")],
    ),
    (
        "minicpm",
        "<|tool_call_start|>time(a={'b': [null, true]}, c=false, null=None)<|tool_call_end|>",
        "",
        [("time", '{"a": {"b": [null, true]}, "c": false, "null": null}')],
    ),
    ("minicpm", "<|tool_call_start|>[time(a='é')]<|tool_call_end|>", "", [("time", '{"a": "é"}')]),
    (
        "pythonic",
        '[weather(city="A (b]\\"", days=1), time(ok=True)]',
        "",
        [("weather", '{"city": "A (b]\\"", "days": 1}'), ("time", '{"ok": true}')],
    ),
    ("pythonic", "<|python_start|>[time()]<|python_end|> Done.", " Done.", [("time", "{}")]),
    ("llama", "[time()]", "", [("time", "{}")]),
    ("llama", "[1, 2]", "[1, 2]", []),
    *(
        ("pythonic", text, text, [])
        for text in (
            "[rain()]",
            "[time(1)]",
            "[time(a=open('x'))]",
            "[time(a=b)]",
            "[time(**{})]",
            "[time(a=1e999)]",
            "[time(a={1, 2})]",
            "[time(a=b'x')]",
            "[time()",
            "[time](x)",
            "[time(a=" + "(" * 99,
        )
    ),
    (
        "harmony",
        '<|channel|>commentary to=functions.time <|constrain|>json<|message|>{"a": 1}<|call|>',
        "",
        [("time", '{"a": 1}')],
    ),
    (
        "harmony",
        "<|channel|>commentary<|message|>Let me look.<|end|><|start|>assistant to=functions.weather"
        f"<|channel|>commentary json<|message|>{PARIS}<|call|>",
        "Let me look.",
        [("weather", PARIS)],
    ),
    ("harmony", " to=functions.time<|channel|>commentary json<|message|>{}", "", [("time", "{}")]),
    ("harmony", "<|channel|>final<|message|>Cold.<|return|>", "Cold.", []),
    ("harmony", "No channel at all.", "No channel at all.", []),
    ("harmony", "<|channel|>commentary to=functions.rain<|message|>{}<|call|>", "{}", []),
    ("harmony", "<|channel|>commentary to=functions.time<|message|>{oops}<|call|>", "{oops}", []),
    ("harmony", '<|channel|>commentary to=functions.time<|message|>{"a": 1, b}', '{"a": 1, b}', []),
    ("harmony", "<|channel|>final", "", []),
    ("glm4", "weather is fine", "weather is fine", []),
    *(
        ("hermes", text, text, [])
        for text in (
            '<tool_call>{"name": "rain", "arguments": {}}</tool_call>',
            '<tool_call>{"name": "weather", "arguments": {"a": }}</tool_call>',
            '<tool_call>{"name": "weather", "arguments": {"a": "\n"}}</tool_call>',
            '<tool_call>{"name": "weather", "arguments": {"a": 1}',
            '<tool_call>{"name": "weather", "arguments": [1]}</tool_call>',
            '<tool_call>{"name": "weather", "arguments": 01}</tool_call>',
            '<tool_call>{"name": "weather", "arguments": {"a": "\\x"}}</tool_call>',
            '<tool_call>{"name": "weather", "arguments": {"a": NaN}}</tool_call>',
            '<tool_call>{"name": ["weather"], "arguments": {}}</tool_call>',
            '<tool_call>{"name": "weather", "arguments": ' + '{"a":' * 100,
            '<tool_call>{"name": "weather", "arguments": "' + "[" * 5000 + '"}</tool_call>',
            "<tool_call>",
            "<tool_call>print(1)</tool_call>",
            "Look: \n<tool_call>print(1)</tool_call>",
            ' {"answer": 42}',
            *("a <tool_cal b", " a  ", ""),
        )
    ),
]


def cuts(answer: str) -> list[list[str]]:
    """The answer whole, in single characters, by threes and, unless it is long, in two at every place."""
    by_threes = [answer[at : at + 3] for at in range(0, len(answer), 3)]
    places = range(1, len(answer)) if len(answer) < 300 else ()
    return [[answer], list(answer), by_threes, *([answer[:at], answer[at:]] for at in places)]


@pytest.mark.parametrize(("family", "answer", "text", "calls"), CASES)
def test_calls_are_found_however_the_text_is_cut(family: str, answer: str, text: str, calls: list[Call]) -> None:
    for pieces in cuts(answer):
        assert parse(pieces, family) == (text, "", calls)
    for _, arguments in calls:
        json.loads(arguments)


def test_arguments_come_while_they_are_written() -> None:
    parser = AnswerParser(FORMATS["hermes"], TOOLS, None)
    first = parser.add('<tool_call>{"name": "weather", "arguments": {"city": "Par')
    (begun,) = first.tool_calls
    assert (begun.index, begun.name, begun.arguments) == (0, "weather", '{"city": "Par')
    (more,) = parser.add("is\\n").tool_calls  # an escape, as soon as it is whole
    assert more == ToolCallDelta(0, arguments="is\\n")


def test_half_a_call_stands_where_only_length_ended_it() -> None:
    half = '<tool_call>{"name": "weather", "arguments": {"city": "Par'
    assert parse([half], truncated=True) == ("", "", [("weather", '{"city": "Par')])
    assert parse(['<tool_call>{"name": "wea'], truncated=True) == ('<tool_call>{"name": "wea', "", [])


@pytest.mark.parametrize(
    "answer",
    [
        '<tool_call>{"name": "time"}</tool_call><tool_call>{"name": "weather"}</tool_call>',
        '<tool_call>[{"name": "time"}, {"name": "weather"}]</tool_call> and more',
    ],
)
def test_calls_beyond_one_are_not_told_where_one_is_wanted(answer: str) -> None:
    for pieces in ([answer], list(answer)):
        assert parse(pieces, most_calls=1) == ("", "", [("time", "{}")])


def test_kimi_gets_the_ids_back_that_it_wrote() -> None:
    begin, separator = "<|tool_call_begin|>", "<|tool_call_argument_begin|>"
    parser = AnswerParser(FORMATS["kimi"], TOOLS, None)
    parsed = parser.add(f"<|tool_calls_section_begin|>{begin}functions.time:7{separator}{{}}<|tool_call_end|>")
    assert [each.id for each in parsed.tool_calls] == ["functions.time:7"]


def test_ids_differ_and_have_the_form_that_the_family_wants() -> None:
    found = {}
    for family, opening in (("hermes", "<tool_call>"), ("mistral", "[TOOL_CALLS]")):
        parser = AnswerParser(FORMATS[family], TOOLS, None)
        found[family] = [
            d.id for d in parser.add(f'{opening}[{{"name": "time"}}, {{"name": "time"}}]').tool_calls if d.id
        ]
    assert [len(set(ids)) for ids in found.values()] == [2, 2]
    assert all(each.startswith("call_") for each in found["hermes"])
    assert all(len(each) == 9 and each.isalnum() for each in found["mistral"])


def test_formats_are_known_by_the_template() -> None:
    spelled = {name: each.openings[0] for name, each in FORMATS.items()}
    assert {
        name: find_tool_format(f"{{% if tools %}}{opening}{{% endif %}}").name for name, opening in spelled.items()
    } == {name: name for name in FORMATS}
    assert find_tool_format("{{ messages }}").name == "hermes"
