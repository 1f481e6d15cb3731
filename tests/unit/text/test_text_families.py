"""Chats with tools, rendered for each family as `transformers` renders its template; and its calls are found again."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.text_assets import CHATML, assets_document
from tests.unit.text.test_text_answer import cuts, parse
from tests.unit.text.test_text_tools import CALLED, JSON_CALLS, TOOLS, messages_of

from polyfleet.text.answer.formats import find_tool_format
from polyfleet.text.prompt_text import PromptText

CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be <|im_end|> brief."},
    CALLED[0],
    CALLED[1] | {"tool_calls": CALLED[1]["tool_calls"][:1], "reasoning_content": "Hm."},
    CALLED[2],
    {"role": "assistant", "content": "Cold."},
    {"role": "user", "content": "And now?"},
]
OPEN = CHAT[:4]  # it ends with a tool's result
Message = dict[str, Any]


def as_text(message: Message) -> Message:
    """Arguments of calls as JSON text."""
    calls = [
        each | {"function": each["function"] | {"arguments": json.dumps(each["function"]["arguments"])}}
        for each in message.get("tool_calls", ())
    ]
    return message | ({"tool_calls": calls} if calls else {})


def thinking(message: Message) -> Message:
    """Thoughts and absent contents as gpt-oss' template wants them."""
    message = {("thinking" if key == "reasoning_content" else key): each for key, each in message.items()}
    return message | {"content": message["content"] or ""}


def same(message: Message) -> Message:
    """As it is."""
    return message


FAMILIES: dict[str, tuple[Callable[[Message], Message], str]] = {
    "harmony": (
        thinking,
        "{% for t in tools or [] %}type {{ t.function.name }} = {{ t.function.parameters or 0 | tojson "
        "}}\n{% endfor %}{% set last = namespace(name=none) %}{% for m in messages %}{% if m.role == "
        "'assistant' %}{% if '<|channel|>' in m.content %}{{ raise_exception('no channels') }}{% endif "
        "%}{% if 'tool_calls' in m %}{% if m.content and m.thinking %}{{ raise_exception('not both') }}{% "
        "endif %}{% if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking "
        "}}<|end|>{% endif %}{% set c = m.tool_calls[0].function %}<|start|>assistant to=functions.{{ "
        "c.name }}<|channel|>commentary json<|message|>{{ c.arguments | tojson }}<|call|>{% set last.name "
        "= c.name %}{% else %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>{% endif "
        "%}{% elif m.role == 'tool' %}{% if last.name is none %}{{ raise_exception('no call') }}{% endif "
        "%}<|start|>functions.{{ last.name }} to=assistant<|channel|>commentary<|message|>{{ m.content | "
        "tojson }}<|end|>{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% "
        "endfor %}<|start|>assistant",
    ),
    "mistral": (
        same,
        "{% for m in messages %}{% if m.role == 'user' %}{% if loop.last and tools %}[AVAILABLE_TOOLS] {{ "
        "tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}[INST] {{ m.content }}[/INST]{% elif m.tool_calls "
        "is defined %}[TOOL_CALLS] [{% for c in m.tool_calls %}{% if c.id | length != 9 %}{{ "
        'raise_exception(\'9 characters\') }}{% endif %}{{ (c.function | tojson)[:-1] }}, "id": "{{ c.id '
        '}}"}{{ ", " if not loop.last }}{% endfor %}]</s>{% elif m.role == \'tool\' %}[TOOL_RESULTS] '
        '{"content": {{ m.content | tojson }}, "call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]{% else '
        "%}{{ m.content }}</s>{% endif %}{% endfor %}",
    ),
    "deepseek": (
        as_text,
        "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{% for m in messages %}{% if m.role == "
        "'assistant' and m.tool_calls %}<｜Assistant｜>{{ m.content or '' }}<｜tool▁calls▁begin｜>{% for c in "
        "m.tool_calls %}<｜tool▁call▁begin｜>{{ c.type }}<｜tool▁sep｜>{{ c.function.name + '\n```json\n' + "
        "c.function.arguments + '\n```' }}<｜tool▁call▁end｜>{% endfor "
        "%}<｜tool▁calls▁end｜><｜end▁of▁sentence｜>{% elif m.role == 'tool' %}<｜tool▁outputs▁begin｜>{{ "
        "m.content }}{% else %}{{ m.role }}: {{ m.content.split('</think>')[-1] }}{% endif %}{% endfor "
        "%}<｜Assistant｜><think>\n",
    ),
    "kimi": (
        same,
        "{% if tools %}{{ tools | tojson(separators=(',', ':')) }}{% endif %}{% for m in messages "
        "%}<|im_{{ m.role }}|>{% if m.role == 'assistant' and m.tool_calls %}{{ m.content or '' "
        "}}<|tool_calls_section_begin|>{% for c in m.tool_calls %}<|tool_call_begin|>{{ c.id "
        "}}<|tool_call_argument_begin|>{% if c.function.arguments is string %}{{ c.function.arguments }}{% "
        "else %}{{ c.function.arguments | tojson }}{% endif %}<|tool_call_end|>{% endfor "
        "%}<|tool_calls_section_end|>{% elif m.role == 'tool' %}## Return of {{ m.tool_call_id }}\n{{ "
        "m.content }}{% else %}{{ m.content }}{% endif %}{% endfor %}",
    ),
    "minicpm": (
        same,
        "{% for t in tools or [] %}def {{ t.function.name }}(...){% endfor %}{% for m in messages %}{{ "
        "m.role }}: {% if m.tool_calls is defined and m.tool_calls is not none "
        "%}<|tool_call_start|>\n```python\n{% for c in m.tool_calls %}{{ c.function.name }}({% for k, v in "
        "c.function.arguments | items %}{{ k }}={{ v | tojson }}{{ ', ' if not loop.last }}{% endfor "
        "%})\n{% endfor %}```\n<|tool_call_end|>{% else %}{{ m.content }}{% endif %}{% endfor %}",
    ),
    "llama": (
        same,
        "{% if tools is not none and false %}<|python_tag|>{% endif %}{% for m in messages "
        "%}<|start_header_id|>{{ m.role }}{% if loop.first and tools %}{% for t in tools %}{{ t | "
        "tojson(indent=4) }}{% endfor %}{% endif %}{% if 'tool_calls' in m %}{% if m.tool_calls | length "
        "!= 1 %}{{ raise_exception('one call') }}{% endif %}{% set c = m.tool_calls[0].function "
        '%}{"name": "{{ c.name }}", "parameters": {{ c.arguments | tojson }}}{% elif m.role == \'tool\' '
        "%}{% if m.content is mapping or m.content is iterable %}{{ m.content | tojson }}{% endif %}{% "
        "else %}{{ m.content | trim }}{% endif %}{% endfor %}",
    ),
    "hermes": (
        same,
        "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}<|im_start|>{{ "
        "m.role }}\n{% if m.content is string %}{{ m.content }}{% endif %}{% if m.reasoning_content is "
        "string %}<think>{{ m.reasoning_content.strip('\n') }}</think>{% endif %}{% for c in m.tool_calls "
        "or [] %}<tool_call>{{ c.function.name }}{% for k, v in c.function.arguments | items %}<arg_key>{{ "
        "k }}</arg_key><arg_value>{{ v if v is string else v | tojson }}</arg_value>{% endfor "
        "%}</tool_call>{% endfor %}<|im_end|>{% endfor %}",
    ),
    "seed": (
        same,
        "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{% for m in messages %}<seed:bos>{{ m.role }}\n"
        "{% if m.reasoning_content is string %}<seed:think>{{ m.reasoning_content }}</seed:think>{% endif %}{% if "
        "m.content is string %}{{ m.content }}{% endif %}{% for c in m.tool_calls or [] %}<seed:tool_call>\n<function="
        "{{ c.function.name }}>\n{% for k, v in c.function.arguments | items %}<parameter={{ k }}>{{ v if v is string "
        "else v | tojson }}</parameter>\n{% endfor %}</function>\n</seed:tool_call>{% endfor %}<seed:eos>{% endfor %}"
        "<seed:bos>assistant\n",
    ),
    "hunyuan": (
        same,
        "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}{% for m in messages %}<|{{ m.role }}|>{% if "
        "m.tool_calls %}<tool_calls>\n[{% for c in m.tool_calls %}{{ c.function | tojson }}{{ ',' if not loop.last }}"
        "{% endfor %}]\n</tool_calls>{% else %}{{ m.content }}{% endif %}<|eos|>{% endfor %}<|assistant|>",
    ),
    "olmo": (
        same,
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if loop.first and tools %}<functions>{{ tools | tojson }}"
        "</functions>{% endif %}{{ m.content or '' }}{% if m.tool_calls %}<function_calls>{% for c in m.tool_calls %}"
        "{{ c.function.name }}({% for k, v in c.function.arguments | items %}{{ k }}={{ v | tojson }}{{ ', ' if not "
        "loop.last }}{% endfor %}){{ '\n' if not loop.last }}{% endfor %}</function_calls>{% endif %}<|im_end|>\n"
        "{% endfor %}<|im_start|>assistant\n",
    ),
    "nemotron": (
        same,
        "{% for m in messages %}<{{ m.role }}>{% if loop.first and tools %}<AVAILABLE_TOOLS>{{ tools | tojson }}"
        "</AVAILABLE_TOOLS>{% endif %}{{ m.content or '' }}{% if m.tool_calls %}<TOOLCALL>[{% for c in m.tool_calls %}"
        "{{ c.function | tojson }}{{ ', ' if not loop.last }}{% endfor %}]</TOOLCALL>{% endif %}<|eot_id|>{% endfor %}"
        "<assistant>",
    ),
    "minitron": (
        same,
        "{% for t in tools or [] %}<tool> {{ t | tojson }} </tool>\n{% endfor %}{% for m in messages %}<extra_id_1>{{ "
        "m.role }}\n{{ m.content or '' }}{% for c in m.tool_calls or [] %}<toolcall> {{ c.function | tojson }} "
        "</toolcall>\n{% endfor %}{% endfor %}<extra_id_1>assistant\n",
    ),
    "internlm": (
        same,
        "{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>environment name=<|plugin|>\n{{ m.content }}"
        "{% else %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}{% for c in m.tool_calls or [] %}<|action_start|>"
        '<|plugin|>\n{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}'
        "<|action_end|>{% endfor %}{% endif %}<|im_end|>\n{% if loop.first and tools %}<|im_start|>system name="
        "<|plugin|>\n{{ tools | tojson }}<|im_end|>\n{% endif %}{% endfor %}<|im_start|>assistant\n",
    ),
    "glm4": (
        same,
        "{% if tools %}{% for t in tools %}## {{ t.function.name }}\n{{ t.function | tojson(indent=4) }}{% "
        "endfor %}{% endif %}{% for m in messages %}{% if m.role == 'assistant' and m.tool_calls %}{% for "
        "c in m.tool_calls %}<|assistant|>{{ c.function.name }}\n{{ c.function.arguments | tojson }}{% "
        "endfor %}{% elif m.role == 'tool' %}<|observation|>\n{{ m.content }}{% else %}<|{{ m.role "
        "}}|>\n{{ m.content }}{% endif %}{% endfor %}<|assistant|>",
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_chats_are_rendered_as_transformers_does(family: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    wanted, template = FAMILIES[family]
    assert find_tool_format(template).name == family
    text = PromptText(assets_document(chat_template=template))
    for chat in (CHAT, OPEN, CHAT[:2]):
        for tools in (None, TOOLS):
            (expected,), _ = render_jinja_template(
                [[wanted(each) for each in chat]], tools=tools, chat_template=template, add_generation_prompt=True
            )
            given = [json.dumps(each) for each in tools or ()]
            assert text.render_chat(messages_of(chat), tools=given) == expected


def test_ids_of_other_models_are_shortened_where_the_template_wants_that() -> None:
    """Each to one of its own, which calls and their results share."""
    call = CALLED[1]["tool_calls"][0]
    ids = ["call_0123456789abcdef", "call_0123456789abcdee", "abcdefghi"]
    chat = [
        CALLED[0],
        {"role": "assistant", "content": None, "tool_calls": [call | {"id": each} for each in ids]},
        *({"role": "tool", "content": "3", "tool_call_id": each} for each in ids),
    ]
    rendered = PromptText(assets_document(chat_template=FAMILIES["mistral"][1])).render_chat(messages_of(chat))
    written = re.findall(r'"id": "([0-9A-Za-z]{9})"', rendered)
    assert len(set(written)) == len(ids)
    assert written[2] == ids[2]
    assert re.findall(r'"call_id": "([^"]*)"', rendered) == written
    kept = PromptText(assets_document(chat_template=FAMILIES["kimi"][1])).render_chat(messages_of(chat))
    assert all(each in kept for each in ids)


PHI = (
    "{% for m in messages %}{% if m['role'] == 'system' and 'tools' in m and m['tools'] is not none %}{{ '<|' + "
    "m['role'] + '|>' + m['content'] + '<|tool|>' + m['tools'] + '<|/tool|><|end|>' }}{% else %}"
    "{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endif %}{% endfor %}{{ '<|assistant|>' }}"
)


@pytest.mark.parametrize("told", ["", "Be brief."])
def test_definitions_in_a_systems_message(told: str) -> None:
    """As Phi 4 mini has them: the functions alone, as JSON; calls are text."""
    assert find_tool_format(PHI).name == "phi"
    system = [{"role": "system", "content": told}] if told else []
    text, chat = PromptText(assets_document(chat_template=PHI)), [*system, *CALLED[:3]]
    rendered = text.render_chat(messages_of(chat), tools=[json.dumps(each) for each in TOOLS])
    functions = json.dumps([each["function"] for each in TOOLS], ensure_ascii=False)
    call = CALLED[1]["tool_calls"][0]["function"]
    written = json.dumps({"name": call["name"], "arguments": call["arguments"]}, ensure_ascii=False)
    assert rendered == (
        f"<|system|>{told}<|tool|>{functions}<|/tool|><|end|><|user|>How is it?<|end|>"
        f"<|assistant|><|tool_call|>[{written}, {written}]<|/tool_call|><|end|>"
        f'<|tool|>{{"degrees": 3}}<|end|><|assistant|>'
    )
    assert "<|tool|>" not in text.render_chat(messages_of([*system, CALLED[0]]))


# What stands in a rendered chat before a call that an assistant made, and behind it.
PLACES: dict[str, tuple[str, str, str]] = {
    "harmony": (FAMILIES["harmony"][1], "<|start|>assistant", "<|start|>"),
    "mistral": (FAMILIES["mistral"][1], "[/INST]", "</s>"),
    "deepseek": (FAMILIES["deepseek"][1], "<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
    "kimi": (FAMILIES["kimi"][1], "<|im_assistant|>", "<|im_end|>"),
    "minicpm": (FAMILIES["minicpm"][1], "assistant: ", "user: "),
    "llama": (FAMILIES["llama"][1], "<|start_header_id|>assistant", "<|eot_id|>"),
    "hermes": (FAMILIES["hermes"][1], "<|im_start|>assistant\n", "<|im_end|>"),
    "hermes, JSON": (JSON_CALLS, "<|im_start|>assistant\n", "<|im_end|>"),
    "hermes, plain": (CHATML, "<|im_start|>assistant\n", "<|im_end|>"),
    "seed": (FAMILIES["seed"][1], "<seed:bos>assistant\n", "<seed:eos>"),
    "hunyuan": (FAMILIES["hunyuan"][1], "<|assistant|>", "<|eos|>"),
    "olmo": (FAMILIES["olmo"][1], "<|im_start|>assistant\n", "<|im_end|>"),
    "nemotron": (FAMILIES["nemotron"][1], "<assistant>", "<|eot_id|>"),
    "minitron": (FAMILIES["minitron"][1], "<extra_id_1>assistant\n", "<extra_id_1>"),
    "internlm": (FAMILIES["internlm"][1], "<|im_start|>assistant\n", "<|im_end|>"),
    "glm4": (FAMILIES["glm4"][1], "<|assistant|>", "<|assistant|>"),
    "phi": (PHI, "<|assistant|>", "<|end|>"),
}
ONE_CALL = ("harmony", "llama", "glm4")  # of a turn


@pytest.mark.parametrize("place", PLACES)
def test_calls_that_a_chat_brings_back_are_written_as_they_are_read(place: str) -> None:
    """Round trip: from the calls of a history to the prompt, and from its text, cut anywhere, to the calls."""
    template, before, behind = PLACES[place]
    arguments = {"city": 'Zü"rich\n{é}', "days": 2, "where": {"x": [1, None, True], "y": ""}}
    called = [("weather", arguments), ("time", {})][: 1 if place in ONE_CALL else 2]
    calls = [
        {"id": f"functions.{name}:{index}" if place == "kimi" else f"call0000{index}", "type": "function"}
        | {"function": {"name": name, "arguments": given}}
        for index, (name, given) in enumerate(called)
    ]
    chat = [CALLED[0], {"role": "assistant", "content": None, "tool_calls": calls}]
    rendered = PromptText(assets_document(chat_template=template)).render_chat(messages_of(chat))
    answer = rendered.partition(before)[2].partition(behind)[0]
    family = find_tool_format(template).name
    for pieces in cuts(answer):
        text, thought, found = parse(pieces, family)
        assert (text.strip(), thought) == ("", "")
        assert [(name, json.loads(given)) for name, given in found] == called
