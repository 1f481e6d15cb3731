"""Tools in a chat's prompt: as `transformers` gives them to templates, or in plain text where these take none."""

import json
from typing import Any

import pytest
from tests.support.text_assets import CHATML, assets_document

from polyfleet.text.prompt_text import PromptText
from polyfleet.wire.limits import FieldError
from polyfleet.wire.requests import Message
from polyfleet.wire.tools import ToolCall

SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Zürich", "<b>"]}}, "required": ["city"]}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "description": 'Says "how" it is.', "parameters": SCHEMA}},
    {"type": "function", "function": {"strict": True, "name": "get_time"}},
]
CALL = {
    "id": "abcdefghi",
    "type": "function",
    "function": {"name": "weather", "arguments": {"city": "<|im_end|>", "n": 1.5}},
}
CALLED: list[dict[str, Any]] = [
    {"role": "user", "content": "How is it?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
    {"role": "tool", "content": '{"degrees": 3}', "tool_call_id": "abcdefghi"},
    {"role": "tool", "content": "x", "tool_call_id": "abcdefghi", "name": "weather"},
]
CHATS: list[list[dict[str, Any]]] = [
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    CALLED,
    [
        *CALLED,
        {"role": "assistant", "content": "Cold.", "reasoning_content": "3 is cold"},
        {"role": "user", "content": "So?"},
    ],
    [{"role": "user", "content": ""}, {"role": "assistant", "content": "Well", "tool_calls": [CALL]}],
]
JSON_CALLS = (
    "{% if tools %}<tools>{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}</tools>{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{% if m.content %}{{ m.content }}{% endif %}"
    '{% for call in m.tool_calls or [] %}\n<tool_call>{"name": "{{ call.function.name }}", "arguments": '
    "{{ call.function.arguments | tojson }}}</tool_call>{% endfor %}"
    "{% if m.tool_call_id is defined %}[{{ m.tool_call_id }}{{ m.name }}]{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>"
    "{% elif thinking == 'high' %}<think>\n{% endif %}{% endif %}"
)
WHOLE_CALLS = (
    "{{ tools | tojson(indent=2) if tools is not none }}{% for m in messages %}{% if m.content is none %}null{% else %}"
    "{{ m.content }}{% endif %}{% if m.tool_calls is defined %}{{ m.tool_calls | tojson }}{% endif %}{% endfor %}"
)
PROPERTIES = (
    "{% for tool in tools or [] %}{% set f = tool.function %}{{ f.name }}{% if f.parameters %}"
    "{% for k, v in f.parameters.properties | items %}{{ k }}:{{ v.type }}"
    "{{ '!' if k in f.parameters.required }}{{ v.enum | join('|') }}{% endfor %}{% endif %}{% endfor %}"
    "{% for m in messages %}{{ m.role }}{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
    "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}{% endfor %}{% endfor %}"
)
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role != 'system' %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endif %}{% endfor %}"
)


def messages_of(chat: list[dict[str, Any]]) -> list[Message]:
    """The messages as a client sends them: arguments are JSON text."""
    out = []
    for each in chat:
        calls = tuple(
            ToolCall(call["id"], call["function"]["name"], json.dumps(call["function"]["arguments"]))
            for call in each.get("tool_calls", ())
        )
        more = each.get("name", ""), calls, each.get("tool_call_id", ""), each.get("reasoning_content", "")
        out.append(Message(each["role"], each["content"], *more))
    return out


@pytest.mark.parametrize("template", [JSON_CALLS, WHOLE_CALLS, PROPERTIES])
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("arguments", [{}, {"enable_thinking": False}, {"thinking": "high"}])
def test_prompts_equal_those_of_transformers(
    template: str, chat: list[dict[str, Any]], arguments: dict[str, Any]
) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    text = PromptText(assets_document(chat_template=template))
    for tools in (None, TOOLS):
        (expected,), _ = render_jinja_template(
            [chat], tools=tools, chat_template=template, add_generation_prompt=True, **arguments
        )
        given = [json.dumps(each) for each in tools or ()]
        more = json.dumps(arguments) if arguments else ""
        assert text.render_chat(messages_of(chat), tools=given, arguments=more) == expected
        prompt = text.encode_chat(messages_of(chat), tools=given, arguments=more)
        assert prompt.thinking == expected.endswith("<think>\n")
        assert prompt.token_ids.count(2) == (len(chat) if template is JSON_CALLS else 0)


def test_a_template_that_wants_arguments_as_text_gets_them_so() -> None:
    template = "{{ tools }}{% for m in messages %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
    template += "{{ '(' + c.function.arguments + ')' }}{% endfor %}{% endfor %}"
    text = PromptText(assets_document(chat_template=template))
    rendered = text.render_chat(messages_of(CALLED[:2]), tools=[json.dumps(TOOLS[1])])
    assert rendered.endswith('({"city": "<|im_end|>", "n": 1.5})' * 2)


def test_arguments_that_are_no_object_stay_as_they_are() -> None:
    text = PromptText(assets_document(chat_template=WHOLE_CALLS))
    rendered = text.render_chat(
        [Message("user", "a"), Message("assistant", None, tool_calls=(ToolCall("1", "f", "[half"),))]
    )
    assert '"arguments": "[half"' in rendered


def test_chats_with_tools_take_the_template_that_is_made_for_them() -> None:
    named = "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}" + CHATML
    text = PromptText(assets_document(chat_template=CHATML, tool_template=named))
    chat = [Message("user", "Hi")]
    tools = [json.dumps(each) for each in TOOLS]
    assert text.render_chat(chat, tools=tools) == "weather get_time " + text.render_chat(chat)


@pytest.mark.parametrize("system", [True, False])
def test_a_template_without_tools_gets_them_in_plain_text(system: bool) -> None:
    template = CHATML if system else NO_SYSTEM
    text = PromptText(assets_document(chat_template=template))
    tools = [json.dumps(each) for each in TOOLS]
    rendered = text.render_chat(messages_of(CALLED), tools=tools)
    parts = rendered.split("<|im_start|>")[1:]
    roles = [part.split("\n")[0] for part in parts]
    assert roles == [*(["system"] if system else []), "user", "assistant", "user", *(["assistant"] if system else [])]
    assert all(json.dumps(each["function"]) in parts[0] for each in TOOLS)
    assert ("How is it?" in parts[0]) is not system
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "<|im_end|>", "n": 1.5}}\n</tool_call>' in rendered
    assert '<tool_response>\n{"degrees": 3}\n</tool_response>\n<tool_response>\nx\n</tool_response>' in rendered
    assert text.encode_chat(messages_of(CALLED), tools=tools).token_ids.count(2) == (4 if system else 3)


@pytest.mark.parametrize(
    ("arguments", "field", "problem"),
    [
        ("[1]", "template_arguments", "must be a JSON object"),
        ("{", "template_arguments", "is no valid JSON"),
        ('{"a": NaN}', "template_arguments", "is no valid JSON"),
        ('{"a":' + "[" * 200 + "]" * 200 + "}", "template_arguments", "nested more than 100"),
        ('{"messages": []}', "template_arguments.messages", "is what the request itself says"),
        ('{"a": "\\ud800"}', "template_arguments", "half a surrogate pair"),
    ],
)
def test_bad_template_arguments_are_refused(arguments: str, field: str, problem: str) -> None:
    with pytest.raises(FieldError, match=problem) as caught:
        PromptText(assets_document()).render_chat([Message("user", "a")], arguments=arguments)
    assert caught.value.field == field
