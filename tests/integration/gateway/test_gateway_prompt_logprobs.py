"""Logprobs of prompts reach clients once, whole and streamed, for every choice, whatever becomes of the worker."""

from typing import Any

import openai
import pytest
from tests.support.fake_worker import FakeWorker, fake_tokens
from tests.support.gateway_rig import MODEL, VOCABULARY, GatewayRig, text_worker
from tests.support.text_assets import byte_level_tokenizer

from polyfleet.client import AsyncClient, InvalidArgumentError
from polyfleet.gateway.request import output

TEXT = "the quick fox"
IDS = byte_level_tokenizer().encode(TEXT).ids
SPELT = [byte_level_tokenizer().decode([each]) for each in IDS]
SCORES = [0.0, *(-0.5 * index for index in range(1, len(IDS)))]


def pair() -> tuple[FakeWorker, FakeWorker]:
    """Two workers of one model."""
    return text_worker("w-1", token_seconds=0.001), text_worker("w-2", token_seconds=0.001)


@pytest.mark.parametrize("most", [3, 2048])
async def test_each_choice_has_them_once_though_its_worker_dies(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "MAX_PROMPT_LOGPROBS", most)
    first, second = pair()
    first.drop_after(20)
    async with GatewayRig() as rig, AsyncClient(f"127.0.0.1:{rig.gateway.grpc.port}") as client:
        await rig.add(first)
        found: dict[int, list[Any]] = {0: [], 1: []}
        ids: dict[int, list[int]] = {0: [], 1: []}
        texts = {0: "", 1: ""}
        asked: Any = {"max_tokens": 40, "n": 2, "logprobs": 1, "prompt_logprobs": 2, "echo": True}
        async with client.stream(TEXT, **asked) as deltas:
            async for delta in deltas:
                if not second.address:
                    first.refusal = (14, "going")
                    await rig.add(second)
                assert len(delta.prompt_logprobs) <= most
                assert len(delta.logprobs) == len(delta.token_ids)
                found[delta.choice] += delta.prompt_logprobs
                ids[delta.choice] += delta.token_ids
                texts[delta.choice] += delta.text
    for choice, tokens in found.items():
        assert ids[choice] == fake_tokens(IDS, 40, choice, VOCABULARY)
        assert texts[choice].startswith(TEXT)
        assert [each.token_id for each in tokens] == IDS
        assert [each.text for each in tokens] == SPELT
        assert [each.logprob for each in tokens] == SCORES
        assert [len(each.top) for each in tokens] == [0, *[2] * (len(IDS) - 1)]
    assert [start.HasField("prompt_logprobs") for start in second.started] == [False, False]


@pytest.mark.parametrize("stream", [False, True])
async def test_echoed_prompts_have_logprobs_as_openai_writes_them(stream: bool) -> None:
    worker, _ = pair()
    async with GatewayRig() as rig, openai.AsyncOpenAI(base_url=f"{rig.http}/v1", api_key="x", max_retries=0) as client:
        await rig.add(worker)
        asked: Any = {"model": MODEL, "prompt": TEXT, "max_tokens": 3, "logprobs": 1, "echo": True, "stream": stream}
        answer = await client.completions.create(**asked)
        choices = [chunk.choices[0] async for chunk in answer] if stream else [answer.choices[0]]
    shown = [each.logprobs for each in choices if each.logprobs]
    tokens, logprobs, offsets, top = (
        [item for each in shown for item in getattr(each, name)]
        for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs")
    )
    assert "".join(each.text for each in choices).startswith(TEXT)
    assert tokens[: len(IDS)] == SPELT
    assert logprobs == [None, *SCORES[1:], *[-0.25] * 3]
    assert (offsets[0], offsets[len(IDS)]) == (0, len(TEXT))
    assert top[0] is None
    assert all(top[1:])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_is_told_alone_as_evaluations_ask_for_it(stream: bool) -> None:
    worker, _ = pair()
    async with GatewayRig() as rig, openai.AsyncOpenAI(base_url=f"{rig.http}/v1", api_key="x", max_retries=0) as client:
        await rig.add(worker)
        asked: Any = {"model": MODEL, "prompt": [IDS, IDS[:2]], "max_tokens": 0, "logprobs": 1, "echo": True, "n": 2}
        answer: Any = await client.completions.create(**asked, stream=stream)
        chunks = [chunk async for chunk in answer] if stream else [answer]
        with pytest.raises(openai.BadRequestError, match="max_tokens: must be 1 or more, not 0"):
            await client.completions.create(model=MODEL, prompt=TEXT, max_tokens=0)
    for index, ids in enumerate((IDS, IDS, IDS[:2], IDS[:2])):
        choices = [each for chunk in chunks for each in chunk.choices if each.index == index]
        shown = [each.logprobs for each in choices if each.logprobs]
        assert "".join(each.text for each in choices) == byte_level_tokenizer().decode(ids)
        assert [token for each in shown for token in each.tokens] == SPELT[: len(ids)]
        assert [score for each in shown for score in each.token_logprobs] == [None, *SCORES[1 : len(ids)]]
        assert [each.finish_reason for each in choices if each.finish_reason] == ["length"]
    if not stream:
        usage = chunks[0].usage
        assert (usage.prompt_tokens, usage.completion_tokens) == (len(IDS) + 2, 0)


async def test_a_prompt_alone_has_no_answer_over_grpc() -> None:
    worker, _ = pair()
    async with GatewayRig() as rig, AsyncClient(f"127.0.0.1:{rig.gateway.grpc.port}") as client:
        await rig.add(worker)
        told = await client.generate(TEXT, max_tokens=0, prompt_logprobs=0, logprobs=3, stop=["fox"])
        echoed = await client.generate(token_ids=IDS, max_tokens=0, echo=True)
        with pytest.raises(InvalidArgumentError, match="max_tokens: must be 1 or more, not 0"):
            await client.generate(TEXT, max_tokens=0)
        with pytest.raises(InvalidArgumentError, match="max_tokens: must be 0 or more, not -1"):
            await client.generate(TEXT, max_tokens=-1, echo=True)
    (choice,) = told.choices
    assert (choice.text, choice.token_ids, choice.logprobs, choice.finish_reason) == ("", (), (), "length")
    assert [each.logprob for each in choice.prompt_logprobs] == SCORES
    assert told.usage is not None
    assert told.usage.completion_tokens == 0
    assert (echoed.text, echoed.token_ids) == (TEXT, ())
