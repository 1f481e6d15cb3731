"""The official `openai` client against a whole gateway with fake workers: HTTP, core, sessions."""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx2 as httpx
import openai
import pytest
from tests.support.fake_worker import FakeWorker, fake_tokens
from tests.support.gateway_rig import MODEL, VOCABULARY, GatewayRig, Stream, text_worker, until
from tests.support.text_assets import byte_level_tokenizer

from polyfleet.v1 import inference_pb2 as pb

HI: Any = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def client(rig: GatewayRig) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{rig.http}/v1", api_key="any", max_retries=0) as client:
        yield client


def expected_text(prompt_ids: Any, count: int, choice: int = 0) -> str:
    text: str = byte_level_tokenizer().decode(
        fake_tokens(prompt_ids, count, choice, VOCABULARY), skip_special_tokens=True
    )
    return text


async def test_completion_says_what_the_worker_generates(client: openai.AsyncOpenAI, worker: FakeWorker) -> None:
    prompt = [5, 6, 7]
    answer = await client.completions.create(model=MODEL, prompt=prompt, max_tokens=12, n=2)
    assert [choice.text for choice in answer.choices] == [expected_text(prompt, 12, choice) for choice in range(2)]
    assert [choice.finish_reason for choice in answer.choices] == ["length", "length"]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 24)
    stream = await client.completions.create(model=MODEL, prompt=prompt, max_tokens=12, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == expected_text(prompt, 12)


async def test_chat_renders_the_template(client: openai.AsyncOpenAI, worker: FakeWorker) -> None:
    answer = await client.chat.completions.create(model=MODEL, messages=HI, max_completion_tokens=5)
    rendered = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    prompt_ids = byte_level_tokenizer().encode(rendered, add_special_tokens=False).ids
    assert list(worker.started[0].prompt_ids) == prompt_ids
    assert answer.choices[0].message.content == expected_text(prompt_ids, 5)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(prompt_ids)


async def test_stop_string_is_not_returned(client: openai.AsyncOpenAI, worker: FakeWorker) -> None:
    whole = expected_text([5], 30)
    stop = whole[8:11]
    answer = await client.completions.create(model=MODEL, prompt=[5], max_tokens=30, stop=[stop])
    assert answer.choices[0].text == whole[: whole.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


async def test_logprobs_are_parallel_to_the_tokens(client: openai.AsyncOpenAI, worker: FakeWorker) -> None:
    chat = await client.chat.completions.create(model=MODEL, messages=HI, max_tokens=4, logprobs=True, top_logprobs=3)
    assert chat.choices[0].logprobs is not None
    content = chat.choices[0].logprobs.content
    assert content is not None
    assert [len(token.top_logprobs) for token in content] == [3, 3, 3, 3]
    assert {token.logprob for token in content} == {-0.25}
    text = await client.completions.create(model=MODEL, prompt=[5], max_tokens=4, logprobs=2)
    assert text.choices[0].logprobs is not None
    assert text.choices[0].logprobs.token_logprobs == [-0.25] * 4


async def test_several_prompts(client: openai.AsyncOpenAI, worker: FakeWorker) -> None:
    answer = await client.completions.create(model=MODEL, prompt=[[5], [6]], max_tokens=3)
    assert [choice.text for choice in answer.choices] == [expected_text([5], 3), expected_text([6], 3)]


async def test_embeddings(client: openai.AsyncOpenAI, worker: FakeWorker) -> None:
    answer = await client.embeddings.create(model=MODEL, input=["a", "b"])
    assert [sum(x * x for x in item.embedding) for item in answer.data] == [pytest.approx(1), pytest.approx(1)]
    assert {len(item.embedding) for item in answer.data} == {worker.hidden_size}


async def test_as_many_inputs_as_openai_takes(client: openai.AsyncOpenAI, worker: FakeWorker) -> None:
    inputs = [[1 + index % 7, 1 + index // 7] for index in range(2048)]
    answer = await client.embeddings.create(model=MODEL, input=inputs)
    assert [item.index for item in answer.data] == list(range(2048))
    assert answer.usage.prompt_tokens == 4096
    last = await client.embeddings.create(model=MODEL, input=[inputs[-1]], encoding_format="float")
    assert answer.data[-1].embedding == pytest.approx(last.data[0].embedding, rel=1e-6)
    with pytest.raises(openai.BadRequestError, match="input: must be at most 2048, not 2049"):
        await client.embeddings.create(model=MODEL, input=[*inputs, [1]])
    with pytest.raises(openai.BadRequestError, match=r"input\[1999\]: "):
        await client.embeddings.create(model=MODEL, input=[*inputs[:1999], [10**6]])


async def test_models(client: openai.AsyncOpenAI, worker: FakeWorker) -> None:
    assert [model.id async for model in client.models.list()] == [MODEL]
    assert (await client.models.retrieve(MODEL)).owned_by == "polyfleet"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 17}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"max_tokens": 10**6}, "max_tokens"),
        ({"stop": [""]}, "stop[0]"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"messages": [{"role": "king", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "long " * 3000}]}, "messages"),
        ({"seed": -2}, "seed"),
        ({"extra_body": {"top_k": -2}}, "top_k"),
        ({"extra_body": {"stop_token_ids": [10**6]}}, "stop_token_ids"),
    ],
)
async def test_bad_values_name_the_field_of_this_api(
    client: openai.AsyncOpenAI, worker: FakeWorker, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(**{"model": MODEL, "messages": HI, **fields})
    assert caught.value.param == param
    too_long = param == "messages" or fields.get("max_tokens", 0) > 1
    assert (caught.value.code == "context_length_exceeded") is too_long
    for sought in ("this model's maximum context length is", "context_length_exceeded"):  # by LiteLLM, by LangChain
        assert (sought in caught.value.message) is too_long
    assert worker.started == []


async def test_a_stream_begins_before_its_first_token(rig: GatewayRig, worker: FakeWorker) -> None:
    """Headers and comments come while the worker is silent, and behind them the whole answer."""
    worker.first_token_seconds = 3600.0
    body = {"model": MODEL, "messages": HI, "stream": True, "max_tokens": 3, "temperature": 0}
    async with (
        httpx.AsyncClient(base_url=rig.http, timeout=30, trust_env=False) as http,
        http.stream("POST", "/v1/chat/completions", json=body) as reply,
    ):
        assert reply.status_code == 200
        lines = reply.aiter_lines()
        assert (await anext(lines)).startswith(":")
        worker.first_token_seconds = 0.0
        for sequence in worker.sequences.values():
            sequence.ready_at = 0.0
        data = [line.removeprefix("data: ") async for line in lines if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    assert "".join(json.loads(each)["choices"][0]["delta"].get("content", "") for each in data[:-1]) != ""


async def test_what_is_wrong_with_a_request_is_a_status_of_streams_too(rig: GatewayRig, worker: FakeWorker) -> None:
    worker.refusal = (grpc.StatusCode.INVALID_ARGUMENT.value[0], "no")
    async with httpx.AsyncClient(base_url=rig.http, timeout=30, trust_env=False) as http:
        for fields, status in (
            ({"messages": [{"role": "user", "content": "long " * 3000}]}, 400),
            ({"model": "nobody"}, 404),
            ({}, 400),  # the worker's refusal
        ):
            body = {"model": MODEL, "messages": HI, "stream": True, **fields}
            reply = await http.post("/v1/chat/completions", json=body)
            assert (reply.status_code, reply.headers["content-type"]) == (status, "application/json")


TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


async def test_a_trace_goes_on_to_the_worker_and_into_the_log(
    rig: GatewayRig, worker: FakeWorker, client: openai.AsyncOpenAI, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    headers = {"traceparent": PARENT, "tracestate": "a=1,b=2"}
    await client.chat.completions.create(model=MODEL, messages=HI, max_tokens=2, extra_headers=headers)
    request = pb.GenerateRequest(model=MODEL, text="hi", max_tokens=2)
    await Stream.read(rig.stub.Generate(request, metadata=tuple(headers.items())))
    await client.chat.completions.create(model=MODEL, messages=HI, max_tokens=2, extra_headers={"traceparent": "no"})
    assert [(each.traceparent, each.tracestate) for each in worker.started] == [(PARENT, "a=1,b=2")] * 2 + [("", "")]
    lines = [vars(record) for record in caplog.records if record.message == "Request ended."]
    assert [(line.get("trace_id"), line.get("span_id")) for line in lines] == [(TRACE, SPAN)] * 2 + [(None, None)]


async def test_pages_of_listed_origins_may_call() -> None:
    headers = {"origin": "https://app.example", "access-control-request-method": "POST"}
    headers |= {"access-control-request-headers": "authorization,content-type,traceparent"}
    async with (
        GatewayRig(config={"cors_origins": ("https://app.example",)}) as rig,
        httpx.AsyncClient(base_url=rig.http, trust_env=False) as http,
    ):
        asked = await http.request("OPTIONS", "/v1/chat/completions", headers=headers)
        assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (200, "https://app.example")
        assert "authorization" in asked.headers["access-control-allow-headers"]
        refused = await http.post("/v1/chat/completions", json={}, headers={"origin": "https://app.example"})
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (400, "https://app.example")
        assert "x-request-id" in refused.headers["access-control-expose-headers"]
        other = await http.get("/v1/models", headers={"origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers
        forbidden = await http.request("OPTIONS", "/v1/models", headers=headers | {"origin": "https://evil.example"})
        assert forbidden.status_code == 400
    async with GatewayRig() as rig, httpx.AsyncClient(base_url=rig.http, trust_env=False) as http:
        assert (await http.request("OPTIONS", "/v1/chat/completions", headers=headers)).status_code == 405
        answer = await http.get("/v1/models", headers={"origin": "https://app.example"})
        assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(("prompt", "param"), [("", "prompt"), ([10**6], "prompt")])
async def test_bad_prompts(client: openai.AsyncOpenAI, worker: FakeWorker, prompt: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.completions.create(model=MODEL, prompt=prompt)
    assert (caught.value.param or "").split("[")[0] == param


async def test_unknown_model(client: openai.AsyncOpenAI, worker: FakeWorker) -> None:
    with pytest.raises(openai.NotFoundError, match=MODEL) as caught:
        await client.chat.completions.create(model="other", messages=HI)
    assert caught.value.code == "model_not_found"


async def test_full_queue_is_429(rig: GatewayRig, client: openai.AsyncOpenAI, worker: FakeWorker) -> None:
    async def ask() -> Any:
        return await client.completions.create(model=MODEL, prompt=[5], max_tokens=30)

    await ask()  # the model is known from here on: until then all wait in the queue
    worker.first_token_seconds = math.inf
    running = [asyncio.create_task(ask()) for _ in range(6)]
    await until(lambda: rig.gateway.ledger.running == 6)
    with pytest.raises(openai.RateLimitError) as caught:
        await ask()
    await until(lambda: len(worker.sequences) == 2)
    worker.first_token_seconds = 0.0
    for sequence in worker.sequences.values():
        sequence.ready_at = 0.0
    assert int(caught.value.response.headers["retry-after"]) >= 1
    assert [answer.choices[0].finish_reason for answer in await asyncio.gather(*running)] == ["length"] * 6


async def test_leaving_frees_the_worker(rig: GatewayRig, client: openai.AsyncOpenAI, worker: FakeWorker) -> None:
    worker.token_seconds = 0.01
    stream = await client.chat.completions.create(model=MODEL, messages=HI, stream=True)
    await stream.__anext__()
    await stream.close()
    await until(lambda: not worker.sequences)
    await until(lambda: rig.gateway.ledger.cancelled == 1)
    async with httpx.AsyncClient(base_url=rig.http) as http:
        with pytest.raises(httpx.ReadTimeout):
            await http.post("/v1/completions", json={"prompt": [5], "max_tokens": 1000}, timeout=0.2)
    await until(lambda: rig.gateway.ledger.cancelled == 2 and not worker.sequences)


async def test_broken_stream_ends_with_an_error_event(rig: GatewayRig, worker: FakeWorker) -> None:
    worker.token_seconds = 0.005
    body = {"prompt": [5], "max_tokens": 1000, "stream": True}
    lines: list[str] = []
    async with (
        httpx.AsyncClient(base_url=rig.http, timeout=60) as http,
        http.stream("POST", "/v1/completions", json=body) as response,
    ):
        assert response.status_code == 200
        async for line in response.aiter_lines():
            lines += [line] if line else []
            if len(lines) == 3:
                worker.refusal = (13, "a fault of the worker")
                worker.drop_sessions()
    assert '"error"' in lines[-1]
    assert "[DONE]" not in lines[-1]


async def test_worker_lost_mid_stream_is_one_unbroken_stream(
    rig: GatewayRig, client: openai.AsyncOpenAI, worker: FakeWorker
) -> None:
    await rig.add(text_worker("w-2"))
    worker.drop_after(5)
    stream = await client.completions.create(model=MODEL, prompt=[5], max_tokens=40, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == expected_text([5], 40)
