"""Answers that go on from a chat's last message, which the assistant has begun: prompts as transformers makes them."""

import pytest
from tests.support.text_assets import CHATML, assets_document
from tests.unit.text.test_text_families import CHAT, FAMILIES, Message
from tests.unit.text.test_text_tools import CALLED, messages_of

from polyfleet.text.prompt_text import PromptText
from polyfleet.wire.limits import FieldError


@pytest.mark.parametrize("family", FAMILIES)
def test_an_answer_that_goes_on_from_the_last_message(family: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    wanted, template = FAMILIES[family]
    chat = [
        CHAT[0],
        {"role": "user", "content": "As JSON."},
        {"role": "assistant", "content": "Here <|im_end|> it is: {"},
    ]
    text = PromptText(assets_document(chat_template=template))
    (expected,), _ = render_jinja_template(
        [[wanted(each) for each in chat]], chat_template=template, continue_final_message=True
    )
    assert text.render_chat(messages_of(chat), arguments='{"continue_final_message": true}') == expected


@pytest.mark.parametrize(
    ("last", "template", "problem"),
    [
        ({"role": "user", "content": "Hello."}, CHATML, "must end with a text of the assistant's"),
        ({"role": "assistant", "content": " \n"}, CHATML, "must end with a text of the assistant's"),
        (CALLED[1], CHATML, "must end with a text of the assistant's"),
        (
            {"role": "assistant", "content": "Hello."},
            CHATML.replace("['content']", "['content'] | upper").replace(".content", ".content | upper"),
            "end with a text that the model's chat template changes",
        ),
    ],
)
def test_no_answer_goes_on_from_what_is_no_text(last: Message, template: str, problem: str) -> None:
    text = PromptText(assets_document(chat_template=template))
    with pytest.raises(FieldError, match=problem):
        text.render_chat(messages_of([CHAT[-1], last]), arguments='{"continue_final_message": true}')
