"""Tools and structures over HTTP: what clients send of them, and how calls and thoughts are written down."""

import json
from typing import Any

import msgspec
import pytest

from polyfleet.gateway.http.bodies import ChatBody
from polyfleet.gateway.http.decoding import decode
from polyfleet.gateway.http.openai.shapes import ChatShape
from polyfleet.gateway.http.openai.translate import chat_request
from polyfleet.gateway.request.validation import check_generate, check_tokenize
from polyfleet.wire.answers import Delta, FinishReason
from polyfleet.wire.gathered import GatheredChoice
from polyfleet.wire.limits import FieldError
from polyfleet.wire.requests import GenerateRequest, Message, TokenizeRequest
from polyfleet.wire.structure import Structure
from polyfleet.wire.tools import ToolCall, ToolCallDelta

USER = {"role": "user", "content": "hi"}
F = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
G = {"type": "function", "function": {"name": "g"}}


def chat(**fields: Any) -> GenerateRequest:
    return chat_request(decode(msgspec.json.encode({"messages": [USER], "tools": [F, G], **fields}), ChatBody), "r")


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ("", ())),
        ("auto", ("auto", ())),
        ("none", ("none", ())),
        ("required", ("required", ())),
        ({"type": "function", "function": {"name": "f"}}, ("required", ("f",))),
        ({"type": "function", "name": "f"}, ("required", ("f",))),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [F, G]}}, ("auto", ("f", "g"))),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]},
            ("required", ("g",)),
        ),
    ],
)
def test_every_form_of_tool_choice(choice: Any, expected: Any) -> None:
    wanted = chat(tool_choice=choice, parallel_tool_calls=False, chat_template_kwargs={"enable_thinking": False})
    assert (wanted.tool_choice, wanted.tool_names) == expected
    assert list(map(json.loads, wanted.tools)) == [F, G]
    assert json.loads(wanted.template_arguments) == {"enable_thinking": False}
    assert not wanted.parallel_tool_calls
    check_generate(wanted)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"tools": "f"}, "tools"),
        ({"tools": [F] * 129}, "tools"),
        ({"tools": [F, F]}, "tools"),
        ({"tools": [3]}, "tools[0]"),
        ({"tools": [F, {"type": "web_search"}]}, "tools[1].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        *(
            ({"tools": [{"type": "function", "function": {"name": name}}]}, "tools[0].function.name")
            for name in ("", "get weather", "a.b", "f\n", "fü", "f" * 65, 3, None)
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": 1}}]}, "tools[0].function.strict"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function.name"),
        ({"tool_choice": {"type": "custom"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.mode"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": []}}, "tool_choice.tools"),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
            "tool_choice.allowed_tools.tools",
        ),
        ({"tool_choice": {"type": "function", "function": {"name": "h"}}}, "tool_names"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"messages": [{**USER, "tool_calls": [{"id": "1", "function": {"name": "f"}}]}]}, "messages[0].tool_calls"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"type": "custom", "function": {"name": "f"}}]}]},
            "messages[0].tool_calls[0].type",
        ),
    ],
)
def test_what_is_wrong_with_tools_is_named(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(FieldError) as caught:
        check_generate(chat(**fields))
    assert caught.value.field == field


def test_tools_of_a_chat_to_be_counted_are_looked_at_alike() -> None:
    with pytest.raises(FieldError) as caught:
        check_tokenize(TokenizeRequest(messages=(Message("user", "hi"),), tools=('{"type": "function"}',)))
    assert caught.value.field == "tools[0].function"


def test_calls_and_thoughts_come_back() -> None:
    calls = [
        {"id": "1", "type": "function", "index": 0, "function": {"name": "f", "arguments": '{"a": 1}'}},
        {"id": "2", "type": "function", "function": {"name": "g", "arguments": {"b": 2}}},
    ]
    turn = {"role": "assistant", "content": None, "tool_calls": calls, "reasoning_content": "Hm."}
    wanted = chat(messages=[USER, turn, {"role": "tool", "tool_call_id": "1", "content": "x"}])
    assert wanted.messages[1].content is None
    assert wanted.messages[1].reasoning == "Hm."
    assert wanted.messages[1].tool_calls == (ToolCall("1", "f", '{"a": 1}'), ToolCall("2", "g", '{"b":2}'))
    assert wanted.messages[2].tool_call_id == "1"


DELTAS = (
    Delta(0, reasoning="Let me "),
    Delta(0, reasoning="see"),
    Delta(0, text="Well", tool_calls=(ToolCallDelta(0, "c1", "f"),)),
    Delta(0, tool_calls=(ToolCallDelta(0, arguments='{"a"'),)),
    Delta(0, tool_calls=(ToolCallDelta(0, arguments=": 1}"), ToolCallDelta(1, "c2", "g", "{"))),
    Delta(0, tool_calls=(ToolCallDelta(1, withdrawn=True),), text="g{"),
    Delta(0, finish_reason=FinishReason.TOOL_CALLS),
)


def test_calls_and_thoughts_are_streamed() -> None:
    shape = ChatShape(logprobs=False)
    chunks = [json.loads(msgspec.json.encode(each)) for delta in DELTAS for each in shape.chunks(delta)]
    assert [chunk["delta"] for chunk in chunks] == [
        {"role": "assistant", "reasoning_content": "Let me "},
        {"reasoning_content": "see"},
        {
            "content": "Well",
            "tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}],
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]},
        {
            "tool_calls": [
                {"index": 0, "function": {"arguments": ": 1}"}},
                {"index": 1, "id": "c2", "type": "function", "function": {"name": "g", "arguments": "{"}},
            ]
        },
        {"content": "g{"},
        {},
    ]
    assert chunks[-1]["finish_reason"] == "tool_calls"


def test_calls_and_thoughts_in_a_whole_answer() -> None:
    gathered = GatheredChoice()
    for delta in DELTAS:
        gathered.add(delta)
    whole = json.loads(msgspec.json.encode(ChatShape(logprobs=False).whole(0, gathered)))
    assert whole["finish_reason"] == "tool_calls"
    assert whole["message"] == {
        "role": "assistant",
        "content": "Wellg{",
        "refusal": None,
        "reasoning_content": "Let me see",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
    }
    silent = GatheredChoice()
    silent.add(Delta(0, tool_calls=(ToolCallDelta(0, "c1", "f", "{}"),), finish_reason=FinishReason.TOOL_CALLS))
    assert json.loads(msgspec.json.encode(ChatShape(logprobs=False).whole(0, silent)))["message"]["content"] is None


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"response_format": None}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Structure(json_object=True)),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "strict": True, "schema": SCHEMA},
                }
            },
            Structure(json_schema=msgspec.json.encode(SCHEMA).decode()),
        ),
        ({"guided_json": json.dumps(SCHEMA)}, Structure(json_schema=json.dumps(SCHEMA))),
        ({"guided_regex": "a+"}, Structure(regex="a+")),
        ({"guided_choice": ["a", "b"]}, Structure(choices=("a", "b"))),
        ({"structured_outputs": {"grammar": "root ::= x"}}, Structure(grammar="root ::= x")),
        ({"structured_outputs": {"json_object": True}}, Structure(json_object=True)),
        ({"structured_outputs": {"json_object": False}}, None),
    ],
)
def test_every_way_to_ask_for_a_structure(fields: dict[str, Any], expected: Structure | None) -> None:
    wanted = chat(**fields)
    assert wanted.structure == expected
    check_generate(wanted)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice"),
        ({"structured_outputs": {"jsn": {}}}, "structured_outputs.jsn"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos"),
        ({"guided_regex": "a", "min_tokens": 3}, "min_tokens"),
        ({"tool_choice": "required", "min_tokens": 3}, "min_tokens"),
    ],
)
def test_what_is_wrong_with_a_structure_is_named(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(FieldError) as caught:
        check_generate(chat(**fields))
    assert caught.value.field == field
