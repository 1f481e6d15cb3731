"""`AsyncClient` against a scripted service. What both clients share is tested with the synchronous one."""

import asyncio

import pytest
from google.rpc import code_pb2
from tests.support.scripted_inference import QUICK, Script, endless, fail, two_choices, unavailable

from polyfleet import client as pf
from polyfleet.v1 import inference_pb2 as pb


async def test_generate_and_chat(script: Script) -> None:
    async with pf.AsyncClient(script.address, api_key="secret") as client:
        answer = await client.generate("hello", n=2)
        assert await client.chat([pf.Message("user", "hi")]) == answer
    assert [choice.text for choice in answer.choices] == ["ab", "x"]
    assert answer.usage == pf.Usage(5, 2, 4)
    assert script.calls == [
        pb.GenerateRequest(text="hello", n=2),
        pb.GenerateRequest(messages=[pb.ChatMessage(role="user", content="hi")]),
    ]
    assert script.metadata[0]["authorization"] == "Bearer secret"


async def test_stream_gives_each_delta(script: Script) -> None:
    async with pf.AsyncClient(script.address) as client, client.stream("hello") as stream:
        texts = [delta.text async for delta in stream]
        assert [delta async for delta in stream] == []
    assert texts == ["a", "x", "b", ""]
    assert stream.transcript.worker_ids == ["w-1", "w-2"]


async def test_close_cancels_the_call(script: Script) -> None:
    script.steps = [endless]
    async with pf.AsyncClient(script.address) as client:
        stream = client.stream("hello")
        assert (await stream.__anext__()).text == "a"
        await stream.close()
        assert await asyncio.to_thread(script.ended.wait, 10)
        assert [delta async for delta in stream] == []


async def test_cancelled_task_cancels_the_call(script: Script) -> None:
    script.steps = [endless]
    async with pf.AsyncClient(script.address) as client:
        task = asyncio.create_task(client.generate("hello"))
        while not script.calls:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(script.ended.wait, 10)


async def test_errors_and_retries(script: Script) -> None:
    script.steps = [unavailable(0.01), two_choices, fail(code_pb2.NOT_FOUND, "no model 'x'; served: m")]
    async with pf.AsyncClient(script.address, retry=QUICK) as client:
        assert (await client.generate("hello")).text == "ab"
        with pytest.raises(pf.NotFoundError, match="served: m") as caught:
            await client.model("x")
    assert caught.value.status == "NOT_FOUND"
    assert len(script.calls) == 3


async def test_tries_are_bounded_and_keep_the_deadline(script: Script) -> None:
    script.steps = [unavailable(0.09)]
    async with pf.AsyncClient(script.address, retry=QUICK) as client:
        with pytest.raises(pf.UnavailableError):
            await client.generate("hello")
        assert len(script.calls) == 3
        with pytest.raises(pf.UnavailableError):
            await client.generate("hello", timeout=0.05)
        assert len(script.calls) == 4


async def test_deadline(script: Script) -> None:
    script.steps = [endless]
    async with pf.AsyncClient(script.address) as client:
        with pytest.raises(pf.DeadlineExceededError):
            await client.generate("hello", timeout=0.3)


async def test_clean_end_before_the_answer_is_an_error(script: Script) -> None:
    script.steps = [lambda request, context: iter([pb.GenerateResponse(text="a")])]
    async with pf.AsyncClient(script.address) as client:
        with pytest.raises(pf.DataLossError):
            await client.generate("hello")


async def test_unary_calls(script: Script) -> None:
    model = pb.Model(name="m", ready_workers=1)
    script.steps = [
        lambda request, context: pb.EmbedResponse(embeddings=[pb.Embedding(values=[0.5])]),
        lambda request, context: pb.TokenizeResponse(token_ids=[1], pieces=["a"]),
        lambda request, context: pb.ListModelsResponse(models=[model]),
        lambda request, context: model,
    ]
    async with pf.AsyncClient(script.address) as client:
        assert (await client.embed("a")).vectors == ((0.5,),)
        assert (await client.tokenize("a")).token_ids == (1,)
        assert [found.name for found in await client.models()] == ["m"]
        assert (await client.model("m")).ready_workers == 1
