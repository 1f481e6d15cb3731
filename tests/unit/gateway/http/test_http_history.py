"""What clients send back of an answer, and how much they want thought: taken in every way in which they say it."""

from typing import Any

import msgspec
import pytest
from tests.unit.gateway.http.test_http_translate import USER, chat

from polyfleet.gateway.http.bodies import TokenizeBody
from polyfleet.gateway.http.decoding import decode
from polyfleet.gateway.http.messages.body import MessagesBody, messages_request
from polyfleet.gateway.http.responses.body import ResponsesBody, responses_request
from polyfleet.gateway.http.tokens import tokenize_request
from polyfleet.wire.limits import FieldError
from polyfleet.wire.requests import GenerateRequest, Message, TokenizeRequest
from polyfleet.wire.structure import Structure


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
        ({"content": "Yes.", "metadata": {}, "prefix": False, "type": "text"}, "Yes."),
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


@pytest.mark.parametrize("field", ["images", "audio", "function_call"])
def test_what_an_answer_brings_that_would_change_the_next_is_refused(field: str) -> None:
    with pytest.raises(FieldError, match="not supported") as caught:
        chat(messages=[USER, {"role": "assistant", "content": "Yes.", field: [True]}])
    assert caught.value.field == f"messages[1].{field}"


def variables(request: GenerateRequest | TokenizeRequest) -> Any:
    return msgspec.json.decode(request.template_arguments) if request.template_arguments else None


@pytest.mark.parametrize(
    ("last", "begun"),
    [
        ({"role": "assistant", "content": "It is {"}, True),
        ({"role": "assistant", "content": [{"type": "text", "text": "It is {"}]}, True),
        ({"role": "assistant", "content": " "}, False),
        ({"role": "assistant", "content": []}, False),
        ({"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]}, False),
        (USER, False),
    ],
)
def test_a_message_goes_on_from_what_the_assistant_has_begun(last: dict[str, Any], begun: bool) -> None:
    body = {"max_tokens": 1, "messages": [USER, last], "thinking": {"type": "disabled"}}
    found = variables(messages_request(decode(msgspec.json.encode(body), MessagesBody), "r"))
    off = {"reasoning_effort": "none", "enable_thinking": False, "thinking": False}
    assert found == off | ({"continue_final_message": True} if begun else {})


GOES_ON = {"continue_final_message": True}
BEGUN = {"role": "assistant", "content": "It is {"}


@pytest.mark.parametrize(
    ("last", "fields", "found"),
    [
        ({**BEGUN, "prefix": True}, {}, GOES_ON),
        ({**BEGUN, "prefix": False}, {}, None),
        ({**BEGUN, "prefix": True}, {"add_generation_prompt": False}, GOES_ON | {"add_generation_prompt": False}),
        (BEGUN, {"continue_final_message": True}, GOES_ON),
        (BEGUN, {"continue_final_message": False, "add_generation_prompt": True}, {"add_generation_prompt": True}),
        (BEGUN, {"chat_template_kwargs": GOES_ON}, GOES_ON),
    ],
)
def test_a_chat_goes_on_from_what_the_assistant_has_begun(last: Any, fields: Any, found: Any) -> None:
    messages = [USER, last]
    assert variables(chat(messages=messages, **fields)) == found
    counted = decode(msgspec.json.encode({"messages": messages, **fields}), TokenizeBody)
    assert variables(tokenize_request(counted)) == found


@pytest.mark.parametrize(
    ("messages", "fields", "field"),
    [
        ([{**BEGUN, "prefix": True}, USER], {}, "messages[0].prefix"),
        ([USER, {**BEGUN, "prefix": True}], {"add_generation_prompt": True}, "add_generation_prompt"),
        ([USER, BEGUN], {"add_generation_prompt": True, **GOES_ON}, "add_generation_prompt"),
        ([USER, {**BEGUN, "prefix": 1}], {}, "messages[1].prefix"),
    ],
)
def test_what_can_not_be_gone_on_with_is_named(messages: Any, fields: Any, field: str) -> None:
    with pytest.raises(FieldError) as caught:
        chat(messages=messages, **fields)
    assert caught.value.field == field


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


def test_responses_take_what_was_refused_and_refuse_what_they_would_ignore() -> None:
    refusal = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "I can't."}]}
    asked = responses_request(response_body(input=[USER, refusal], include=["reasoning.encrypted_content"]), "r")
    assert asked.messages[1] == Message("assistant", "I can't.")
    bad: dict[str, dict[str, Any]] = {
        "text.verbosity": {"text": {"verbosity": "low"}},
        "include": {"include": ["message.output_text.logprobs"]},
    }
    for field, fields in bad.items():
        with pytest.raises(FieldError) as caught:
            responses_request(response_body(input="hi", **fields), "r")
        assert caught.value.field == field
    assert responses_request(response_body(input="hi", text={"verbosity": "medium"}), "r").structure is None


def test_messages_take_pictures_of_tools_and_leave_out_sealed_thoughts() -> None:
    picture = {"type": "image", "source": {"type": "base64", "data": "AAAA"}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "See:"}, picture]}
    sealed = {"type": "redacted_thinking", "data": "x"}
    call = {"type": "tool_use", "id": "1", "name": "f", "input": {}}
    turns = [USER, {"role": "assistant", "content": [sealed, call]}, {"role": "user", "content": [result]}]
    asked = messages_request(message_body(messages=turns), "r").messages
    assert [each.role for each in asked] == ["user", "assistant", "tool"]
    assert (asked[1].content, asked[1].reasoning) == (None, "")
    assert (asked[2].texts, [each.data for each in asked[2].images]) == (("See:",), [bytes(3)])
    result["content"] = [{"type": "image", "source": {"type": "base64", "data": "?"}}]
    with pytest.raises(FieldError) as caught:
        messages_request(message_body(messages=turns), "r")
    assert caught.value.field == "messages[2].content[0].content[0].source.data"


def test_the_other_apis_say_the_same_of_thinking() -> None:
    item: dict[str, Any] = {"input": "hi", "reasoning": {"effort": "none", "summary": "auto"}}
    off = variables(chat(reasoning_effort="none"))
    assert variables(responses_request(response_body(**item), "r")) == off
    kinds = {None: None, "disabled": off, "enabled": None, "adaptive": None}
    for kind, wanted in kinds.items():
        thinking = {"thinking": {"type": kind, "budget_tokens": 9}} if kind else {}
        assert variables(messages_request(message_body(**thinking), "r")) == wanted
    efforts = {"low": variables(chat(reasoning_effort="low")), "max": variables(chat(reasoning_effort="xhigh"))}
    for effort, wanted in efforts.items():
        config: dict[str, Any] = {"effort": effort, "format": None}
        assert variables(messages_request(message_body(output_config=config), "r")) == wanted
        off_again = message_body(output_config=config, thinking={"type": "disabled"})
        assert variables(messages_request(off_again, "r")) == off


def response_body(**fields: Any) -> ResponsesBody:
    return decode(msgspec.json.encode(fields), ResponsesBody)


def message_body(**fields: Any) -> MessagesBody:
    return decode(msgspec.json.encode({"max_tokens": 1, "messages": [USER], **fields}), MessagesBody)


def test_a_message_has_to_be_what_its_output_config_says() -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    asked = messages_request(message_body(output_config={"format": form}), "r")
    assert asked.structure == Structure(json_schema='{"type":"object"}')
    assert messages_request(message_body(output_config={}), "r").structure is None
    for bad, field in (({"type": "json_schema"}, ".schema"), ({"type": "xml"}, ".type")):
        with pytest.raises(FieldError) as caught:
            messages_request(message_body(output_config={"format": bad}), "r")
        assert caught.value.field == f"output_config.format{field}"


def test_an_item_that_would_have_to_be_kept_here_is_refused_with_what_to_do() -> None:
    with pytest.raises(FieldError, match="keeps no items; send the item itself: item_reference") as caught:
        responses_request(response_body(input=[USER, {"type": "item_reference", "id": "msg_1"}]), "r")
    assert caught.value.field == "input[1].type"


def test_a_systems_turn_within_messages() -> None:
    said = messages_request(message_body(messages=[USER, {"role": "system", "content": "Be brief."}]), "r").messages
    assert [each.role for each in said] == ["user", "system"]
