"""Bodies: malformed JSON, wrong types, unknown and unsupported fields; what is ignored or neutral passes."""

import contextlib
import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from polyfleet.gateway.http.bodies import ChatBody, CompletionBody, EmbeddingsBody, Strict
from polyfleet.gateway.http.decoding import MOST_COLONS, decode, decode_inputs, decode_messages
from polyfleet.gateway.http.messages.body import MessagesBody
from polyfleet.gateway.http.openai.translate import chat_request
from polyfleet.wire.limits import FieldError

USER = {"role": "user", "content": "hi"}


def chat(**fields: Any) -> ChatBody:
    return decode(msgspec.json.encode({"messages": [USER], **fields}), ChatBody)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"messages": []} trailing',
        b"\xff\xfe",
        b'{"model": "\xff", "messages": []}',
        b'{"messages": [], "temperature": NaN}',
        b'{"messages": [], "tools": ' + b"[" * 100_000,
    ],
)
def test_what_is_no_json(body: bytes) -> None:
    with pytest.raises(FieldError, match=r"the body is (no valid JSON|nested too deeply)") as caught:
        decode(body, ChatBody)
    assert caught.value.field == ""


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"max_tokens": "12"}, "max_tokens"),
        ({"n": 1.5}, "n"),
        ({"stream": "yes"}, "stream"),
        ({"stop": ["a", 3]}, "stop[1]"),
        ({"messages": "hi"}, "messages"),
        (
            {"messages": [USER, {"role": "user", "content": [{"type": "text", "text": 3}]}]},
            "messages[1].content[0].text",
        ),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ],
)
def test_wrong_type_names_the_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(FieldError) as caught:
        decode_messages(chat(**fields).messages, 10)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("kind", "fields", "field", "problem"),
    [
        (
            *(ChatBody, {"reasoning_effort": "huge"}, "reasoning_effort"),
            "must be one of high, low, medium, minimal, none, xhigh, not 'huge'",
        ),
        (
            *(EmbeddingsBody, {"input": "a", "encoding_format": "hex"}, "encoding_format"),
            "must be one of base64, float, not 'hex'",
        ),
        (
            *(EmbeddingsBody, {"input": "a", "encoding_format": "x" * 99}, "encoding_format"),
            f"must be one of base64, float, not '{'x' * 59}",
        ),
        (
            *(MessagesBody, {"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "document"}]}]}),
            *(
                "messages[0].content[0].type",
                "must be one of text, image, thinking, redacted_thinking, tool_use, tool_result, not 'document'",
            ),
        ),
        (
            *(MessagesBody, {"max_tokens": 1, "thinking": {"type": "deep"}}, "thinking.type"),
            "must be one of adaptive, disabled, enabled, not 'deep'",
        ),
    ],
)
def test_a_value_that_is_none_of_those_which_are_possible(
    kind: type[Strict], fields: dict[str, Any], field: str, problem: str
) -> None:
    messages = {} if kind is EmbeddingsBody else {"messages": [USER]}
    with pytest.raises(FieldError) as caught:
        decode(msgspec.json.encode(messages | fields), kind)
    assert (caught.value.field, caught.value.problem) == (field, problem)


@pytest.mark.parametrize(
    "body", [b"[]", b"3", b"{}", b'{"messages": [], "temprature": 1}', b'{"messages": [], "temperature": 1e999}']
)
def test_body_that_is_no_request(body: bytes) -> None:
    with pytest.raises(FieldError) as caught:
        decode(body, ChatBody)
    assert "no valid JSON" not in caught.value.problem


def test_unknown_field_is_named() -> None:
    with pytest.raises(FieldError, match="temprature"):
        chat(temprature=1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("functions", [{"name": "f"}]),
        ("function_call", {"name": "f"}),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "x", "format": "wav"}),
        ("verbosity", "low"),
        ("web_search_options", {}),
        ("moderation", {"model": "m"}),
    ],
)
def test_unsupported_field_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(FieldError, match="not supported") as caught:
        chat(**{name: value})
    assert caught.value.field == name


@pytest.mark.parametrize("value", [b"1e999", b"-1e400", b"[" * 500 + b"]" * 500, b'{"a":' * 200 + b"1" + b"}" * 200])
def test_what_an_unsupported_field_holds_need_not_be_readable(value: bytes) -> None:
    with pytest.raises(FieldError, match="not supported") as caught:
        decode(b'{"messages": [], "functions": ' + value + b"}", ChatBody)
    assert caught.value.field == "functions"


def test_unsupported_fields_that_ask_for_nothing_pass() -> None:
    body = chat(
        functions=[],
        function_call="auto",
        modalities=["text"],
        audio=None,
        verbosity="medium",
        web_search_options=None,
    )
    assert decode_messages(body.messages, 10)[0].content == "hi"


def test_messages_are_counted_before_they_are_made() -> None:
    """Braces in texts are no messages; what is no message counts as well, since it is not looked into."""
    braces = {"role": "user", "content": "{" * 50}
    assert len(decode_messages(chat(messages=[braces] * 10).messages, 10)) == 10
    with pytest.raises(FieldError, match="at most 10") as caught:
        decode_messages(chat(messages=[{"no": "message"}] * 11).messages, 10)
    assert caught.value.field == "messages"


def test_unknown_fields_may_be_null_and_nothing_else() -> None:
    """Typed clients send what they know of, null where it is not set; a misspelt field with a value is told."""
    assert chat(brand_new=None, temperature=0.5) == chat(temperature=0.5)
    values: list[Any] = [0, False, "", [], {}]
    for value in values:
        with pytest.raises(FieldError, match="brand_new"):
            chat(brand_new=value, another=None)
    with pytest.raises(FieldError, match="temprature"):
        chat(brand_new=None, temprature=1)
    options = {"include_usage": True, "brand_new": None}
    assert chat(stream=True, stream_options=options) == chat(stream=True, stream_options={"include_usage": True})
    with pytest.raises(FieldError, match=r"stream_options\.include_usge"):
        chat(stream=True, stream_options={"include_usge": True, "brand_new": None})


def test_not_everything_is_looked_through_for_nulls() -> None:
    """Unknown fields by the million are refused at the first one, in bodies and in messages."""
    many = b",".join(b'"a%d":null' % each for each in range(MOST_COLONS + 1))
    with pytest.raises(FieldError, match="a0"):
        decode(b'{"messages": [], ' + many + b"}", ChatBody)
    with pytest.raises(FieldError, match=r"messages\[0\]\.a0"):
        decode_messages(msgspec.Raw(b'[{"role": "user", ' + many + b"}]"), 10)


ANSWERS: list[dict[str, Any]] = [
    {"annotations": None, "audio": None, "function_call": None, "refusal": None, "tool_calls": None},  # openai
    {"annotations": [], "tool_calls": [], "reasoning_content": "Hm.", "reasoning": "Hm."},  # vLLM
    {
        "provider_specific_fields": {"refusal": None},
        "thinking_blocks": [{"type": "thinking"}],
        "images": None,
    },  # LiteLLM
    {"reasoning_details": [{"type": "reasoning.text"}], "parsed": None, "some_later_field": None},
    {"annotations": [{"type": "url_citation"}], "refusal": "No.", "tool_call_id": "c-1"},
]


@pytest.mark.parametrize("fields", ANSWERS)
def test_answers_come_back_as_servers_gave_them(fields: dict[str, Any]) -> None:
    history = [USER, {"role": "assistant", "content": "hello", **fields}, USER]
    wanted = chat_request(chat(messages=history), "r")
    assert [(each.role, each.content) for each in wanted.messages] == [
        ("user", "hi"),
        ("assistant", "hello"),
        ("user", "hi"),
    ]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"contents": "hi"}, "contents"),
        ({"reasoning_contents": "Hm."}, "reasoning_contents"),
        ({"audio": {"id": "a"}}, "audio"),
        ({"function_call": {"name": "f", "arguments": "{}"}}, "function_call"),
        ({"tool_calls": [{"id": "c"}], "unknown": None}, "tool_calls[0].function"),
    ],
)
def test_what_a_message_asks_beyond_is_refused_by_name(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(FieldError) as caught:
        chat_request(chat(messages=[USER, {"role": "assistant", "content": "x", **fields}]), "r")
    assert caught.value.field == f"messages[1].{field}"


def test_ignored_fields_pass() -> None:
    chat(
        user="u",
        metadata={"a": "b"},
        parallel_tool_calls=True,
        prediction={"type": "content", "content": "x"},
        prompt_cache_key="k",
        prompt_cache_retention="24h",
        safety_identifier="s",
        service_tier="flex",
        stream=True,
        stream_options={"include_usage": True, "include_obfuscation": False},
    )


@pytest.mark.parametrize(
    ("kind", "body", "field"),
    [
        (CompletionBody, {"prompt": "a", "suffix": "b"}, "suffix"),
        (CompletionBody, {"prompt": "a", "logit_bias": {"a": 1}}, "logit_bias"),
        (CompletionBody, {"prompt": "a", "logit_bias": {"1": "x"}}, "logit_bias[...]"),
        (CompletionBody, {"prompt": "a", "logit_bias": [1]}, "logit_bias"),
        (EmbeddingsBody, {"input": "a", "encoding_format": "int8"}, "encoding_format"),
    ],
)
def test_other_endpoints_refuse_by_name_too(kind: type[Strict], body: dict[str, Any], field: str) -> None:
    with pytest.raises(FieldError) as caught:
        decode(msgspec.json.encode(body), kind)
    assert caught.value.field == field


@pytest.mark.parametrize("item", [b"[]", b"{}", b"[1]", b'""'])
@pytest.mark.parametrize("field", ["metadata", "tools", "user", "prediction"])
def test_what_is_not_looked_into_is_not_made(field: str, item: bytes) -> None:
    body = b'{"messages":[{"role":"user","content":"hi"}],"%s":[%s]}' % (field.encode(), b",".join([item] * 200_000))
    assert _peak(lambda: decode(body, ChatBody)) < 2 * len(body)


@pytest.mark.parametrize("first", [b"[]", b"1", b'""'])
def test_lists_of_inputs_are_not_made_when_they_are_too_many(first: bytes) -> None:
    body = msgspec.Raw(b"[%s,%s]" % (first, b",".join([b"[]"] * 200_000)))
    assert _peak(lambda: decode_inputs(body, "prompt", 64)) < 3 * len(bytes(body))


@pytest.mark.parametrize("value", [b"[ [1], [2] ]", b' [\n"a" , "b"]'])
def test_inputs_may_be_laid_out_freely(value: bytes) -> None:
    body = decode(b'{"prompt": %s}' % value, CompletionBody)
    assert len(decode_inputs(body.prompt, "prompt", 2)) == 2


@pytest.mark.parametrize(
    ("value", "field"), [(b'["a", 1.5]', "prompt[1]"), (b'[[1], ["a"]]', "prompt[1][0]"), (b'["a", [1]]', "prompt")]
)
def test_inputs_of_a_wrong_type_name_the_field(value: bytes, field: str) -> None:
    with pytest.raises(FieldError) as caught:
        decode_inputs(msgspec.Raw(value), "prompt", 64)
    assert caught.value.field == field


def test_the_collector_runs_behind_every_body() -> None:
    for body in (b"{", b'{"messages": []}', b"\xff"):
        with contextlib.suppress(FieldError):
            decode(body, ChatBody)
        assert gc.isenabled()


def _peak(work: Callable[[], object]) -> int:
    """Bytes that `work`, which may refuse, had at most at once."""
    tracemalloc.start()
    try:
        with contextlib.suppress(FieldError):
            work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
