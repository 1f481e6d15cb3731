"""Logprobs of prompts reach clients once, whole and streamed, for every choice, whatever becomes of the worker."""

from typing import Any

import openai
import pytest
from tests.support.fake_worker import FakeWorker, fake_tokens
from tests.support.gateway_rig import MODEL, VOCABULARY, GatewayRig, text_worker
from tests.support.text_assets import byte_level_tokenizer

from polyfleet.client import AsyncClient
from polyfleet.gateway.request import generation

TEXT = "the quick fox"
IDS = byte_level_tokenizer().encode(TEXT).ids
SPELT = [byte_level_tokenizer().decode([each]) for each in IDS]
SCORES = [0.0, *(-0.5 * index for index in range(1, len(IDS)))]


def pair() -> tuple[FakeWorker, FakeWorker]:
    """Two workers of one model."""
    return text_worker("w-1", token_seconds=0.001), text_worker("w-2", token_seconds=0.001)


@pytest.mark.parametrize("most", [3, 2048])
async def test_each_choice_has_them_once_though_its_worker_dies(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "MAX_PROMPT_LOGPROBS", most)
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
