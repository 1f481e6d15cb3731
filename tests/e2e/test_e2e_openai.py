"""The official `openai` client against a running stack."""

from collections.abc import Iterator

import openai
import pytest
from tests.support.serve_process import ServeProcess

from polyfleet.cli.stack.settings import MODEL_NAME

QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]


@pytest.fixture(scope="module")
def client(stack: ServeProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://{stack.http}/v1", api_key="unused", timeout=120) as client:
        yield client


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL_NAME]


def test_chat_streaming_says_what_not_streaming_says(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL_NAME, messages=QUESTION, max_tokens=8, temperature=0)  # type: ignore[arg-type]
    chunks = list(
        client.chat.completions.create(  # type: ignore[call-overload]
            model=MODEL_NAME,
            messages=QUESTION,
            max_tokens=8,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert "Paris" in text
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert len(chunks) > 3


def test_completions_streaming_and_not(client: openai.OpenAI) -> None:
    whole = client.completions.create(model=MODEL_NAME, prompt="One, two, three,", max_tokens=6, temperature=0)
    chunks = client.completions.create(
        model=MODEL_NAME, prompt="One, two, three,", max_tokens=6, temperature=0, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text
    assert "four" in whole.choices[0].text
    assert whole.choices[0].finish_reason == "length"


def test_an_unknown_model_is_a_404(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(model="absent", prompt="a")
    assert MODEL_NAME in caught.value.message
