"""What clients send back of an answer, and how much they want thought: taken in every way in which they say it."""

from typing import Any

import msgspec
import pytest
from tests.unit.gateway.http.test_http_translate import USER, chat

from polyfleet.gateway.http.decoding import decode
from polyfleet.gateway.http.messages.body import MessagesBody, messages_request
from polyfleet.gateway.http.responses.body import ResponsesBody, responses_request
from polyfleet.wire.limits import FieldError
from polyfleet.wire.requests import GenerateRequest, Message


@pytest.mark.parametrize(
    ("said", "content"),
    [
        ({}, ""),
        ({"content": None}, ""),
        ({"content": None, "tool_calls": []}, ""),
        ({"content": []}, ()),
        ({"content": None, "refusal": "I can't."}, "I can't."),
        ({"content": "Yes.", "refusal": "I can't."}, "Yes."),
        ({"content": [{"type": "refusal", "refusal": "I can't."}]}, "I can't."),
        ({"content": [{"type": "output_text", "text": "Yes.", "annotations": []}]}, "Yes."),
        (
            {"content": "Yes.", "parsed": {"a": 1}, "id": "m1", "cache_control": {}, "citations": [], "images": []},
            "Yes.",
        ),
        ({"content": "Yes.", "metadata": {}, "prefix": False}, "Yes."),
    ],
)
def test_an_answer_comes_back_in_the_ways_in_which_servers_give_it(said: dict[str, Any], content: Any) -> None:
    assert chat(messages=[USER, {"role": "assistant", **said}]).messages[1] == Message("assistant", content)


def test_a_call_without_arguments_and_a_tool_that_gave_nothing_back() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": None}}
    messages = [
        USER,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": None},
    ]
    asked, result = chat(messages=messages).messages[1:]
    assert [each.arguments for each in asked.tool_calls] == [""]
    assert (asked.content, result.content) == (None, "")


@pytest.mark.parametrize("field", ["prefix", "images", "audio", "function_call"])
def test_what_an_answer_brings_that_would_change_the_next_is_refused(field: str) -> None:
    with pytest.raises(FieldError, match="not supported") as caught:
        chat(messages=[USER, {"role": "assistant", "content": "Yes.", field: [True]}])
    assert caught.value.field == f"messages[1].{field}"


def variables(request: GenerateRequest) -> Any:
    return msgspec.json.decode(request.template_arguments) if request.template_arguments else None


def test_the_effort_to_think_with_reaches_the_template_in_its_own_words() -> None:
    low = {"reasoning_effort": "low", "enable_thinking": True, "thinking": True}
    assert variables(chat(reasoning_effort="low")) == low
    assert variables(chat(reasoning_effort="low", chat_template_kwargs={"thinking": 3})) == low | {"thinking": 3}
    off = {"reasoning_effort": "none", "enable_thinking": False, "thinking": False}
    assert variables(chat(reasoning_effort="none")) == off
    assert chat(reasoning_effort=None) == chat(store=True, modalities=[]) == chat()
    with pytest.raises(FieldError) as caught:
        chat(reasoning_effort="much")
    assert caught.value.field == "reasoning_effort"


def test_the_other_apis_say_the_same_of_thinking() -> None:
    item: dict[str, Any] = {"input": "hi", "reasoning": {"effort": "none", "summary": "auto"}}
    off = variables(chat(reasoning_effort="none"))
    assert variables(responses_request(decode(msgspec.json.encode(item), ResponsesBody), "r")) == off
    turn: dict[str, Any] = {"max_tokens": 1, "messages": [USER]}
    kinds = {None: None, "disabled": off, "enabled": None, "adaptive": None}
    for kind, wanted in kinds.items():
        body = turn | ({"thinking": {"type": kind, "budget_tokens": 9}} if kind else {})
        assert variables(messages_request(decode(msgspec.json.encode(body), MessagesBody), "r")) == wanted
