"""Errors name fields as the client wrote them, whichever API it speaks: of every field that the core may refuse."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from tests.unit.gateway.http.test_http_translate import USER

from polyfleet.gateway.http.decoding import decode
from polyfleet.gateway.http.messages import body as messages
from polyfleet.gateway.http.names import CHAT, Names, http_field
from polyfleet.gateway.http.openai.endpoints import EMBEDDINGS
from polyfleet.gateway.http.openai.shapes import ChatShape, CompletionShape
from polyfleet.gateway.http.responses import body as responses
from polyfleet.gateway.request.validation import check_generate
from polyfleet.text.grammar import Calls, make_grammar
from polyfleet.wire.limits import FieldError
from polyfleet.wire.requests import GenerateRequest

PIXEL = "aGVsbG8="
DATA, FAR = f"data:image/png;base64,{PIXEL}", "https://example.com/a.png"
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": DATA}]}
THOUGHT = {"type": "reasoning", "summary": []}
SHOWN = {"role": "user", "content": [{"type": "input_text", "text": "?"}, {"type": "input_image", "image_url": FAR}]}
TURNS: dict[str, Any] = {
    "system": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}],
    "messages": [
        USER,
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "3"},
                {
                    "type": "tool_result",
                    "tool_use_id": "b",
                    "content": [
                        {"type": "text", "text": "See:"},
                        {"type": "image", "source": {"type": "base64", "data": PIXEL}},
                    ],
                },
                {"type": "thinking", "thinking": "Hm."},
                {"type": "image", "source": {"type": "url", "url": FAR}},
            ],
        },
        USER,
    ],
}


def message_body(**given: Any) -> messages.MessagesBody:
    return decode(msgspec.json.encode({"max_tokens": 1, "messages": [USER], **given}), messages.MessagesBody)


def response_body(**given: Any) -> responses.ResponsesBody:
    return decode(msgspec.json.encode({"input": [USER], **given}), responses.ResponsesBody)


OF_TURNS = messages.names(message_body(**TURNS))
OF_ITEMS = responses.names(response_body(input=[USER, THOUGHT, CALL, CALL, OUTPUT, SHOWN], instructions="Be brief."))
TABLE: list[tuple[Names, Mapping[str, str]]] = [
    (
        {**CHAT, **ChatShape(logprobs=False).names},
        {
            "sampling.temperature": "temperature",
            "logprobs": "top_logprobs",
            "messages[1].role": "messages[1].role",
            "messages[1].parts[12]": "messages[1].content[12]",
            "messages[1].parts[12].image_url": "messages[1].content[12].image_url",
            "messages[1].tool_calls": "messages[1].tool_calls",
            "structure.json_schema": "response_format",
            "template_arguments.messages": "chat_template_kwargs.messages",
            "tool_names": "tool_choice",
            "tools[3].function.parameters.type": "tools[3].function.parameters.type",
            "stop[2]": "stop[2]",
            "logit_bias[99]": "logit_bias[99]",
        },
    ),
    (
        CompletionShape(logprobs=False, structure="guided_regex").names,
        {
            "text": "prompt",
            "token_ids[3]": "prompt[3]",
            "prompt_logprobs": "logprobs",
            "structure.regex": "guided_regex",
        },
    ),
    (EMBEDDINGS, {"inputs": "input", "inputs[2].text": "input[2]", "inputs[0].token_ids": "input[0]"}),
    (
        OF_TURNS,
        {
            "max_tokens": "max_tokens",
            "messages": "messages",
            "messages[0].role": "system",
            "messages[1].role": "messages[0].role",
            "messages[2].tool_calls": "messages[1]",
            "messages[3].role": "messages[2].content[0]",
            "messages[4].parts[1]": "messages[2].content[1].content[1].source.data",
            "messages[5].parts[0].image_url": "messages[2].content[3].source.url",
            "messages[6].role": "messages[3].role",
            "sampling.top_p": "top_p",
            "stop[2]": "stop_sequences[2]",
            "structure": "output_config.format",
            "structure.json_schema": "output_config.format.schema",
            "tool_choice": "tool_choice",
            "tool_names": "tool_choice.name",
            "tools[3]": "tools[3]",
            "tools[3].function.name": "tools[3].name",
            "tools[3].function.parameters.type": "tools[3].input_schema.type",
        },
    ),
    (
        OF_ITEMS,
        {
            "max_tokens": "max_output_tokens",
            "messages": "input",
            "messages[0].role": "instructions",
            "messages[1].role": "input[0].role",
            "messages[2].role": "input[2]",
            "messages[3].role": "input[4]",
            "messages[3].parts[0]": "input[4].output[0].image_url",
            "messages[4].parts[1].image_url": "input[5].content[1].image_url",
            "sampling.top_p": "top_p",
            "structure": "text.format",
            "structure.json_schema": "text.format.schema",
            "tool_names": "tool_choice",
            "tools[3].function.name": "tools[3].name",
            "tools[3].function.parameters.type": "tools[3].parameters.type",
        },
    ),
    (responses.names(response_body(input="hi")), {"messages[0]": "input", "messages": "input"}),
]


@pytest.mark.parametrize(
    ("names", "field", "expected"),
    [(names, field, expected) for names, table in TABLE for field, expected in table.items()],
)
def test_every_field_of_the_core_is_called_as_the_body_calls_it(names: Names, field: str, expected: str) -> None:
    assert http_field(field, names) == expected


def of_message(given: dict[str, Any]) -> tuple[GenerateRequest, Names]:
    body = message_body(**given)
    return messages.messages_request(body, "r"), messages.names(body)


def of_response(given: dict[str, Any]) -> tuple[GenerateRequest, Names]:
    body = response_body(**given)
    return responses.responses_request(body, "r"), responses.names(body)


REFUSED: list[tuple[Callable[[dict[str, Any]], tuple[GenerateRequest, Names]], dict[str, Any], str]] = [
    (of_message, {"stop_sequences": ["x", ""]}, "stop_sequences[1]"),
    (of_message, {"max_tokens": 0}, "max_tokens"),
    (of_message, {"top_k": -1}, "top_k"),
    (of_message, {"tool_choice": {"type": "any"}}, "tool_choice"),
    (of_message, {"tools": [{"name": "f"}], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name"),
    (of_message, {"tools": [{"name": "f"}, {"name": ""}]}, "tools[1].name"),
    (of_message, {"tools": [{"name": "f", "input_schema": []}]}, "tools[0].input_schema"),
    (of_message, {"tools": [{"name": "f", "input_schema": {"type": "array"}}]}, "tools[0].input_schema.type"),
    (of_message, {"messages": [{**TURNS["messages"][1], "role": "user"}]}, "messages[0]"),
    (of_response, {"max_output_tokens": 0}, "max_output_tokens"),
    (of_response, {"input": [{"role": "nobody", "content": "?"}], "instructions": "Be brief."}, "input[0].role"),
    (of_response, {"tool_choice": "required"}, "tool_choice"),
    (of_response, {"tools": [{"type": "function", "name": ""}]}, "tools[0].name"),
    (of_response, {"tools": [{"type": "function", "name": "f", "parameters": []}]}, "tools[0].parameters"),
]


@pytest.mark.parametrize(("asked", "given", "field"), REFUSED)
def test_what_the_core_refuses_is_called_as_the_client_wrote_it(
    asked: Callable[[dict[str, Any]], tuple[GenerateRequest, Names]], given: dict[str, Any], field: str
) -> None:
    request, names = asked(given)
    with pytest.raises(FieldError) as caught:
        check_generate(request)
    assert http_field(caught.value.field, names) == field


def test_a_tools_schema_that_can_not_be_kept_to_is_called_as_the_client_wrote_it() -> None:
    bad = {"type": "object", "properties": {"a": {"type": "strin"}}}
    tools = [{"name": "f"}, {"name": "g", "input_schema": bad}]
    request, names = of_message({"tools": tools, "tool_choice": {"type": "tool", "name": "g"}})
    with pytest.raises(FieldError) as caught:
        make_grammar(None, Calls(request.tools, request.tool_names, required=True))
    assert json.loads(request.tools[1])["function"]["parameters"] == bad
    assert http_field(caught.value.field, names) == "tools[1].input_schema"
