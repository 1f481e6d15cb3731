"""What a chat template wants and leaves out, and how it ends turns, found by trying it; the bound on a prompt."""

import json
from typing import Any

import pytest
from tests.support.text_assets import CHATML, assets_document, byte_level_tokenizer, sentencepiece_like_tokenizer
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers

from polyfleet.text.errors import TextAssetsError
from polyfleet.text.prompt_text import PromptText
from polyfleet.text.span import max_token_bytes
from polyfleet.wire.limits import CONTEXT_LENGTH_EXCEEDED, FieldError
from polyfleet.wire.requests import Message

PARTS = (
    "{% for m in messages %}{{ m.role }}:{% for c in m['content'] %}"
    "{% if c['type'] == 'text' %}{{ c['text'] }}{% endif %}{% endfor %};{% endfor %}"
)
TOOL_CALL = byte_level_tokenizer().token_to_id("<tool call>")
EITHER = (
    "{% for m in messages %}{% if m.content is string %}s{{ m.content }}{% else %}"
    "{% for c in m.content %}p{{ c.text }}{% endfor %}{% endif %}{% endfor %}"
)


def prompts(template: str, **changes: Any) -> PromptText:
    return PromptText(assets_document(chat_template=template, **changes))


@pytest.mark.parametrize(
    ("template", "content", "rendered"),
    [
        (PARTS, "Hi", "user:Hi;"),
        (PARTS, ("Hi", "you"), "user:Hiyou;"),
        (EITHER, "Hi", "sHi"),
        (EITHER, ("Hi", "you"), "sHi\nyou"),
        ("{{ messages[0].content }}", ("Hi", "you"), "Hi\nyou"),
        ("{{ messages[0].content[0].text }}", "Hi", "Hi"),
        ("{{ messages[0].content }}", (), ""),
    ],
)
def test_contents_come_in_the_form_that_the_template_wants(template: str, content: Any, rendered: str) -> None:
    assert prompts(template).render_chat([Message("user", content)]) == rendered


@pytest.mark.parametrize(
    "template", ["Hello!", "{% for m in messages %}{{ m.role }}{% endfor %}", "{{ messages[0].text }}"]
)
def test_a_template_without_what_the_user_says_is_refused(template: str) -> None:
    text = prompts(template)
    with pytest.raises(TextAssetsError, match="leaves out what the user says"):
        text.prepare_chat()
    with pytest.raises(FieldError, match="messages: The model's chat template leaves out what the user says"):
        text.encode_chat([Message("user", "Hi")])
    assert text.encode("Hi")


def test_roles_that_the_template_drops_are_refused() -> None:
    text = prompts(
        "{% for m in messages %}{% if m.role in ['user', 'assistant'] %}{{ m.content }}{% endif %}{% endfor %}"
    )
    for role in ("system", "tool"):
        with pytest.raises(FieldError, match=f"leaves out messages of role {role}") as caught:
            text.encode_chat([Message("user", "a"), Message(role, "Be brief.")])
        assert caught.value.field == "messages[1].role"
    assert text.render_chat([Message("system", " "), Message("user", "a"), Message("assistant", "b")]) == "ab"
    refusal = "{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    strict = prompts("{% for m in messages %}" + refusal + "{{ m.content }}{% endfor %}")
    with pytest.raises(FieldError, match="no tools"):
        strict.encode_chat([Message("user", "a"), Message("tool", "b")])


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (CHATML, (2,)),
        ("{% for m in messages %}{{ m.content }}\n<|im_start|>{% endfor %}", (1,)),
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", ()),
        ("{% for m in messages %}{{ m.content }}{{ '' if loop.last else '<|im_start|>' }}{% endfor %}", (1,)),
        ("{% for m in messages %}{{ m.content }}<|im_{{ 'end' if loop.last else 'start' }}|>{% endfor %}", (2,)),
        ("{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}", (2,)),
        ("{% for m in messages %}{{ m.content }}<tool call>{% endfor %}", (TOOL_CALL,)),
    ],
)
def test_the_end_of_a_turn_is_the_control_token_behind_an_answer(template: str, expected: tuple[int, ...]) -> None:
    assert prompts(template).encode_chat([Message("user", "fox")]).end_token_ids == expected


def test_templates_have_the_special_tokens_as_variables() -> None:
    named = {"unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "<b>", "additional_special_tokens": ["<x>"]}
    template = "{{ bos_token }}{{ eos_token }}{{ unk_token }}{{ pad_token }}{{ cls_token is defined }}"
    text = prompts(template + "{{ messages[0].content }}", special_tokens=named, bos_token="<s>")
    assert text.render_chat([Message("user", "a")]) == "<s><|im_end|><unk><pad>Falsea"


@pytest.mark.parametrize(
    ("expression", "rendered"),
    [
        ("tools is none and documents is none and add_generation_prompt", "True"),
        ("enable_thinking is defined", "False"),
        ("date_string | default('today')", "today"),
        ("strftime_now('%Y') | length", "4"),
        ("messages | map(attribute='role') | join(',')", "user"),
        ("(messages | rejectattr('role', 'equalto', 'user') | list | length)", "0"),
        ("{'b': 1, 'a': 2} | tojson(sort_keys=True, separators=(',', ':'))", '{"a":2,"b":1}'),
        ("dict(a=1) | items | list", "[('a', 1)]"),
        ("'a b'.split()[-1].strip().title().ljust(3, '.') + 'x'.startswith('x') | string", "B..True"),
        ("cycler('a', 'b').next() ~ joiner(',')() ~ range(3) | list | last", "a2"),
    ],
)
def test_what_templates_expect_of_transformers(expression: str, rendered: str) -> None:
    text = prompts("{{ " + expression + " }}|{{ messages[0].content }}")
    assert text.render_chat([Message("user", "a")]) == f"{rendered}|a"


def test_a_template_may_be_too_long_and_an_error_is_short() -> None:
    with pytest.raises(TextAssetsError, match="longer than 262144 characters"):
        prompts("x" * 300_000).prepare_chat()
    with pytest.raises(FieldError) as caught:
        prompts("{{ raise_exception('<' ~ 'x' * 10**6 ~ messages[0].content) }}").encode_chat([Message("user", "<|a")])
    assert len(str(caught.value)) < 700


def definition(tokenizer: Tokenizer, **changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(tokenizer.to_str())
    return {**found, **changes}


def test_a_token_stands_for_so_many_bytes_at_most() -> None:
    plain = definition(byte_level_tokenizer())
    longest = max(len(piece) for piece in plain["model"]["vocab"])
    assert max_token_bytes(plain) == max(longest, len("<|endoftext|>"))
    assert max_token_bytes({**plain, "normalizer": {"type": "NFC"}}) == 4 * (max_token_bytes(plain) or 0)
    assert max_token_bytes(definition(sentencepiece_like_tokenizer())) == len("▁日本".encode())


def test_nothing_bounds_a_token_where_text_may_get_lost() -> None:
    plain = definition(byte_level_tokenizer())
    strips = Tokenizer.from_str(byte_level_tokenizer().to_str())
    strips.add_tokens([AddedToken("<strip>", lstrip=True)])
    folded = Tokenizer.from_str(byte_level_tokenizer().to_str())
    folded.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Strip()])
    words = Tokenizer.from_str(byte_level_tokenizer().to_str())
    words.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel()])
    removing = {"type": "Replace", "pattern": {"Regex": "x+"}, "content": ""}
    for each in (
        definition(strips),
        definition(folded),
        definition(words),
        {**plain, "normalizer": removing},
        {**plain, "model": {**plain["model"], "type": "WordPiece"}},
        {**plain, "pre_tokenizer": None},
    ):
        assert max_token_bytes(each) is None


def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded() -> None:
    text, room = PromptText(assets_document()), max_token_bytes(definition(byte_level_tokenizer())) or 0
    assert text.encode("é" * (room * 4 // 2), max_tokens=4)
    with pytest.raises(
        FieldError, match=f"is {room * 4 + 1} bytes long, .* context length is 4 tokens, which hold at most {room * 4}"
    ) as caught:
        text.encode("x" * (room * 4 + 1), max_tokens=4)
    assert caught.value.reason == CONTEXT_LENGTH_EXCEEDED
    with pytest.raises(FieldError, match=r"messages: is .* bytes long"):
        text.encode_chat([Message("user", "x" * room * 9)], max_tokens=9)


@pytest.mark.parametrize("name", ["upper", "lower", "title", "capitalize"])
def test_a_template_may_put_contents_into_another_case(name: str) -> None:
    template = "{% for m in messages %}{{ m.content | NAME }}{% endfor %}".replace("NAME", name)
    expected = getattr("hi THERE", name)()
    assert PromptText(assets_document(chat_template=template)).render_chat([Message("user", "hi THERE")]) == expected
