"""ModelText: encoding, chat templates in their sandbox, assets that can't be used."""

from typing import Any

import pytest
from tests.support.text_assets import (
    CHATML,
    assets_document,
    byte_level_tokenizer,
    render_chat,
    sentencepiece_like_tokenizer,
)

from polyfleet.text.errors import TextAssetsError
from polyfleet.text.model_text import ModelText
from polyfleet.text.prompt_text import PromptText
from polyfleet.wire.limits import FieldError

USER = [{"role": "user", "content": "Hi <b>"}]


def with_template(template: str, **changes: Any) -> ModelText:
    return ModelText(assets_document(chat_template=template, **changes))


def test_chat_is_rendered_up_to_the_answer() -> None:
    assert render_chat(with_template(CHATML), USER) == "<|im_start|>user\nHi <b><|im_end|>\n<|im_start|>assistant\n"


def test_special_tokens_of_a_rendered_chat_are_single_ids() -> None:
    text = with_template(CHATML)
    token_ids = text.encode(render_chat(text, USER), add_special_tokens=False)
    assert token_ids[0] == 1
    assert token_ids.count(2) == 1
    assert text.pieces(token_ids[:1]) == ["<|im_start|>"]


def test_blocks_are_trimmed_as_model_files_expect() -> None:
    template = "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\n"
    assert render_chat(with_template(template), USER) == "Hi <b>\n"


def test_helpers_of_templates() -> None:
    template = (
        "{{ bos_token }}|{{ messages | tojson }}|{{ strftime_now('%Y') | length }}|"
        "{% generation %}g{% endgeneration %}"
        "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    )
    rendered = render_chat(with_template(template, bos_token="<s>"), [{"role": "user", "content": "<é>"}])
    assert rendered == '<s>|[{"role": "user", "content": "<é>"}]|4|g01'


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% set _ = messages.append(1) %}", "append"),
        ("{{ 'a' * 10**9 }}", "repetition"),
        ("{{ 10 ** 10000 }}", "too large"),
        ("{% set n = namespace(x=3) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}", "too large"),
        ("{% for i in range(10**9) %}x{% endfor %}", "Range too big"),
        ("{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}", "longer than"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages[5].content.x }}", "no element 5"),
    ],
)
def test_a_template_that_fails_refuses_the_messages(template: str, reason: str) -> None:
    with pytest.raises(FieldError, match=reason) as caught:
        render_chat(with_template(template), USER)
    assert caught.value.field == "messages"


def test_templates_leave_the_messages_as_they_are() -> None:
    messages = [{"role": "user", "content": "x"}]
    with pytest.raises(FieldError):
        render_chat(with_template("{% set _ = messages[0].update({'content': 'y'}) %}"), messages)
    assert messages == [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(("template", "reason"), [(None, "no chat template"), ("{% for %}", "not valid")])
def test_a_model_without_a_usable_template_takes_text_only(template: str | None, reason: str) -> None:
    text = ModelText(assets_document(chat_template=template))
    assert text.encode("fox")
    with pytest.raises(FieldError, match=reason):
        render_chat(text, USER)


def test_the_first_token_is_added_once() -> None:
    text = ModelText(assets_document(bos_token="<|endoftext|>", add_bos=True))
    plain = text.encode("fox", add_special_tokens=False)
    assert text.encode("fox") == [0, *plain]
    assert text.encode("<|endoftext|>fox") == [0, *plain]
    assert ModelText(assets_document(bos_token="<|endoftext|>")).encode("fox") == plain


def test_half_a_surrogate_pair_is_no_text() -> None:
    with pytest.raises(FieldError, match="surrogate"):
        ModelText(assets_document()).encode("a\ud800")


def test_text_of_single_tokens() -> None:
    text = ModelText(assets_document())
    vocab = byte_level_tokenizer().get_vocab()
    assert text.token_text(2) == "<|im_end|>"
    assert text.token_text(vocab["Ġ"]) == " "
    assert text.token_text(vocab["ð"]) == "\ufffd"
    assert text.token_text(vocab["<tool call>"]) == "<tool call>"
    assert text.token_text(10**6) == ""
    assert text.pieces([vocab["Ġ"], 10**6]) == ["Ġ", ""]
    pieces = ModelText(assets_document(sentencepiece_like_tokenizer()))
    assert pieces.token_text(3 + 0xF0) == "\ufffd"


@pytest.mark.parametrize(
    "document",
    [b"", b"[]", b"{}", b'{"tokenizer": {}}', b'{"tokenizer": {"model": {"type": "BPE"}}}', b"\xff", b"[" * 100_000],
)
def test_unusable_assets_are_named(document: bytes) -> None:
    with pytest.raises(TextAssetsError, match="tokenizer assets"):
        ModelText(document)


OTHERS = [5, 0.5, True, "text", ["text"], [0.5], [None], {"a": 1}]
TEXTS = ("chat_template", "tool_template", "pair_template", "bos_token", "eos_token")
FITTING: dict[str, list[Any]] = {
    **{key: ["text"] for key in TEXTS},
    **{key: list[Any]() for key in ("end_token_ids", "special_tokens")},
    "add_bos": [True],
    **{key: [{"a": 1}] for key in ("images", "sampling_defaults")},  # whose fields one direction alone reads
}
UNFITTING = [(key, each) for key, fitting in FITTING.items() for each in OTHERS if each not in fitting]


@pytest.mark.parametrize(("key", "value"), UNFITTING, ids=repr)
def test_assets_of_another_kind_than_their_key_are_refused_by_both_directions(key: str, value: Any) -> None:
    """They are a worker's word: whatever they are, the gateway has to say what is wrong with them."""
    document = assets_document(**{key: value})
    for direction in (ModelText, PromptText):
        with pytest.raises(TextAssetsError, match="tokenizer assets"):
            direction(document)


def test_sampling_defaults_are_those_stated() -> None:
    stated = {"temperature": 0.2, "top_p": 0.9, "top_k": 50, "min_p": 0.0, "repetition_penalty": 1.1}
    assert ModelText(assets_document(sampling_defaults=stated)).sampling_defaults == stated
    assert ModelText(assets_document(sampling_defaults={"top_p": 0.5})).sampling_defaults == {"top_p": 0.5}
    assert ModelText(assets_document()).sampling_defaults == {}


@pytest.mark.parametrize("stated", [{"temperature": 9}, {"top_p": "much"}, {"beams": 4}, {"seed": 1}, [1]])
def test_sampling_defaults_that_no_request_could_state_are_refused(stated: Any) -> None:
    with pytest.raises(TextAssetsError, match=r"sampling.defaults"):
        ModelText(assets_document(sampling_defaults=stated))


def test_end_tokens_are_kept() -> None:
    assert ModelText(assets_document(end_token_ids=[0, 2])).end_token_ids == (0, 2)
