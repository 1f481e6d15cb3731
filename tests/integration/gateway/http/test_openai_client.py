"""The official `openai` client, sync and async, against the HTTP application on a real port over a fake core."""

from typing import Any

import openai
import pytest
from tests.support.fake_generation import FakeGeneration

from polyfleet.wire.requests import EmbedInput, GenerateRequest, Message

MODEL = "org/fake"
HI: Any = [{"role": "user", "content": "hi"}]


def test_chat(client: openai.OpenAI, generation: FakeGeneration) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HI, n=2, temperature=0.5, stop="x")
    assert [(c.index, c.message.role, c.message.content, c.finish_reason) for c in answer.choices] == [
        (0, "assistant", "Hello there friend 0", "stop"),
        (1, "assistant", "Hello there friend 1", "stop"),
    ]
    assert (answer.object, answer.model, answer.choices[0].logprobs) == ("chat.completion", MODEL, None)
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (5, 6, 11)
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 2
    wanted = generation.requests[0]
    assert isinstance(wanted, GenerateRequest)
    assert (wanted.messages, wanted.n, wanted.stop, wanted.sampling.temperature) == (
        (Message("user", "hi"),),
        2,
        ("x",),
        0.5,
    )
    assert answer.id == f"chatcmpl-{wanted.request_id}"


def test_chat_stream(client: openai.OpenAI) -> None:
    with client.chat.completions.create(model=MODEL, messages=HI, n=2, stream=True) as stream:
        chunks = list(stream)
    texts = {0: "", 1: ""}
    for chunk in chunks:
        assert chunk.usage is None
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == {0: "Hello there friend 0", 1: "Hello there friend 1"}
    assert [chunk.choices[0].delta.role for chunk in chunks] == ["assistant"] * 2 + [None] * 6
    ended = [chunk.choices[0] for chunk in chunks if chunk.choices[0].finish_reason]
    assert [(each.index, each.finish_reason, each.delta.content) for each in ended] == [
        (0, "stop", None),
        (1, "stop", None),
    ]
    assert len({(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in chunks}) == 1


def test_stream_usage_comes_last_and_alone(client: openai.OpenAI) -> None:
    with client.chat.completions.create(
        model=MODEL, messages=HI, stream=True, stream_options={"include_usage": True}
    ) as stream:
        *chunks, last = stream
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.total_tokens == 8


def test_continuous_usage(client: openai.OpenAI, generation: FakeGeneration) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    with client.chat.completions.create(model=MODEL, messages=HI, stream=True, stream_options=options) as stream:
        *chunks, last = stream
    assert [chunk.usage and chunk.usage.completion_tokens for chunk in chunks] == [1, 2, 3, 3]
    assert last.usage is not None
    assert (last.choices, last.usage.completion_tokens) == ([], 3)
    prompts = ["one", "two"]
    with client.completions.create(model=MODEL, prompt=prompts, stream=True, stream_options=options) as texts:
        usages = [each.usage for each in texts]
    counted = [usage.completion_tokens for usage in usages if usage]
    assert (len(counted), counted) == (len(usages), sorted(counted))
    assert counted[-1] == 6
    options = {"continuous_usage_stats": True}
    with pytest.raises(openai.BadRequestError, match="include_usage"):
        client.chat.completions.create(model=MODEL, messages=HI, stream=True, stream_options=options)


def test_chat_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HI, logprobs=True, top_logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    first = logprobs.content[0]
    assert (first.token, first.logprob, first.bytes) == ("Hello", -0.5, list(b"Hello"))
    assert [(t.token, t.bytes) for t in first.top_logprobs] == [
        ("Hello", list(b"Hello")),
        ("\ufffd", [0xF0]),
    ]
    with client.chat.completions.create(model=MODEL, messages=HI, logprobs=True, stream=True) as stream:
        streamed = [c.choices[0].logprobs.content for c in stream if c.choices[0].logprobs]
    assert [content[0].token for content in streamed if content] == ["Hello", " there", " friend"]


def test_completion_with_several_prompts_and_choices(client: openai.OpenAI, generation: FakeGeneration) -> None:
    answer = client.completions.create(model=MODEL, prompt=["one", "two"], n=2, logprobs=1)
    assert [(c.index, c.text, c.finish_reason) for c in answer.choices] == [
        (index, f"Hello there friend {index % 2}", "stop") for index in range(4)
    ]
    logprobs = answer.choices[3].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["Hello", " there", " friend"]
    assert logprobs.token_logprobs == [-0.5, -0.5, -0.5]
    assert logprobs.text_offset == [0, 5, 11]
    assert logprobs.top_logprobs == [{t: -0.5, r"bytes:\xf0": -3.0} for t in logprobs.tokens]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (10, 12)
    assert sorted(w.text or "" for w in generation.requests if isinstance(w, GenerateRequest)) == ["one", "two"]
    assert answer.object == "text_completion"


def test_completion_stream_of_token_ids(client: openai.OpenAI, generation: FakeGeneration) -> None:
    with client.completions.create(model=MODEL, prompt=[[1, 2], [3]], stream=True, max_tokens=5) as stream:
        texts = {0: "", 1: ""}
        for chunk in stream:
            texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == {0: "Hello there friend 0", 1: "Hello there friend 0"}
    wanted = [w for w in generation.requests if isinstance(w, GenerateRequest)]
    assert sorted(w.token_ids for w in wanted) == [(1, 2), (3,)]
    assert {w.max_tokens for w in wanted} == {5}


def test_extensions_pass_as_extra_body(client: openai.OpenAI, generation: FakeGeneration) -> None:
    extra = {
        "top_k": 5,
        "min_p": 0.1,
        "ignore_eos": True,
        "stop_token_ids": [7],
        "priority": 3,
        "repetition_penalty": 1.5,
    }
    client.chat.completions.create(model=MODEL, messages=HI, extra_body=extra, logit_bias={"5": -100})
    wanted = generation.requests[0]
    assert isinstance(wanted, GenerateRequest)
    assert wanted.logit_bias == {5: -100}
    assert (wanted.sampling.top_k, wanted.sampling.min_p, wanted.sampling.repetition_penalty) == (5, 0.1, 1.5)
    assert (wanted.ignore_eos, wanted.stop_token_ids, wanted.priority) == (True, (7,), 3)


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list()
    assert (model.id, model.created, model.owned_by, model.object) == (MODEL, 1700000000, "polyfleet", "model")
    assert client.models.retrieve(MODEL) == model
    with pytest.raises(openai.NotFoundError, match="There is no model other; served: org/fake"):
        client.models.retrieve("other")


def test_embeddings(client: openai.OpenAI, generation: FakeGeneration) -> None:
    # The client asks for base64 by itself unless told otherwise.
    answer = client.embeddings.create(model=MODEL, input=["a", "b"])
    assert [item.embedding for item in answer.data] == [[0.0, 0.5, -0.25], [1.0, 0.5, -0.25]]
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens, answer.model) == (8, 8, MODEL)
    floats = client.embeddings.create(model=MODEL, input=[1, 2], encoding_format="float")
    assert floats.data[0].embedding == [0.0, 0.5, -0.25]
    assert [getattr(wanted, "inputs", None) for wanted in generation.requests] == [
        (EmbedInput("a"), EmbedInput("b")),
        (EmbedInput(token_ids=(1, 2)),),
    ]
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model=MODEL, input="a", dimensions=0)
    assert caught.value.param == "dimensions"


async def test_async_client(url: str, generation: FakeGeneration) -> None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
        answer = await client.chat.completions.create(model=MODEL, messages=HI)
        assert answer.choices[0].message.content == "Hello there friend 0"
        stream = await client.chat.completions.create(model=MODEL, messages=HI, stream=True)
        assert "".join([c.choices[0].delta.content or "" async for c in stream]) == "Hello there friend 0"
        text = await client.completions.create(model=MODEL, prompt="a", stream=True)
        assert "".join([c.choices[0].text async for c in text]) == "Hello there friend 0"
        assert [model.id async for model in client.models.list()] == [MODEL]
        assert (await client.embeddings.create(model=MODEL, input="a")).data[0].embedding == [0.0, 0.5, -0.25]
        with pytest.raises(openai.NotFoundError):
            await client.completions.create(model="x", prompt="a")


async def test_async_client_that_leaves_cancels(url: str, generation: FakeGeneration) -> None:
    generation.endless = True
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
        stream = await client.chat.completions.create(model=MODEL, messages=HI, stream=True)
        await stream.__anext__()
        await stream.close()
    assert generation.cancelled.wait(10)
