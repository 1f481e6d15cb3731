"""A model's own sampling defaults: taken for what a request leaves out, over both protocols, unless switched off."""

import asyncio
import json
import urllib.request
from typing import Any

import pytest
from tests.support.fake_worker import FakeWorker
from tests.support.gateway_rig import MODEL, VOCABULARY, GatewayRig, Stream
from tests.support.text_assets import assets_document

from polyfleet.v1 import inference_pb2 as pb

DEFAULTS = {"temperature": 0.2, "top_p": 0.9, "top_k": 50, "repetition_penalty": 1.1}
OURS = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}


def worker(**stated: float) -> FakeWorker:
    return FakeWorker("w-1", MODEL, assets=assets_document(sampling_defaults=stated), vocabulary_size=VOCABULARY)


def drawn(worker: FakeWorker) -> dict[str, float]:
    """How the last sequence's tokens are drawn."""
    sampling = worker.started[-1].sampling
    return {name: getattr(sampling, name) for name in OURS}


async def http(rig: GatewayRig, path: str, body: Any = None) -> Any:
    def call() -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(rig.http + path, data, {"content-type": "application/json"})
        with urllib.request.urlopen(request) as reply:
            return json.loads(reply.read())

    return await asyncio.to_thread(call)


STATED: list[dict[str, Any]] = [
    {},
    {"temperature": 1},
    {"temperature": 0},
    {"top_p": 1.0, "top_k": 0},
    {"min_p": 0.5, "repetition_penalty": 1.0},
    {"temperature": 1, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1},
]


@pytest.mark.parametrize("stated", STATED)
async def test_what_is_left_out_is_the_models_and_what_is_stated_wins(stated: dict[str, Any]) -> None:
    expected = OURS | DEFAULTS | stated
    served = worker(**DEFAULTS)
    async with GatewayRig() as rig:
        await rig.add(served)
        sampling = pb.SamplingParams(**stated)
        for prompt in (
            {"text": "fox"},
            {"token_ids": [4, 5]},
            {"messages": [pb.ChatMessage(role="user", content="a")]},
        ):
            await Stream.read(rig.stub.Generate(pb.GenerateRequest(**prompt, sampling=sampling, max_tokens=1)))
            assert drawn(served) == expected
        nulls = dict.fromkeys(OURS.keys() - stated.keys()) | stated
        for fields in (stated, nulls):
            await http(rig, "/v1/completions", {"prompt": "fox", "max_tokens": 1, **fields})
            assert drawn(served) == expected
            chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, **fields}
            await http(rig, "/v1/chat/completions", chat)
            assert drawn(served) == expected


async def test_they_are_shown() -> None:
    async with GatewayRig() as rig:
        await rig.add(worker(**DEFAULTS))
        await Stream.read(rig.stub.Generate(pb.GenerateRequest(text="fox", max_tokens=1)))
        model = await rig.stub.GetModel(pb.GetModelRequest(name=MODEL))
        (listed,) = (await http(rig, "/v1/models"))["data"]
        one = await http(rig, f"/v1/models/{MODEL}")
    assert model.sampling_defaults == pb.SamplingParams(**DEFAULTS)  # type: ignore[arg-type]
    assert listed["sampling_defaults"] == one["sampling_defaults"] == DEFAULTS


async def test_switched_off_they_neither_hold_nor_show() -> None:
    served = worker(**DEFAULTS)
    async with GatewayRig(config={"generation_config": "none"}) as rig:
        await rig.add(served)
        await Stream.read(rig.stub.Generate(pb.GenerateRequest(text="fox", max_tokens=1)))
        model = await rig.stub.GetModel(pb.GetModelRequest(name=MODEL))
        (listed,) = (await http(rig, "/v1/models"))["data"]
    assert drawn(served) == OURS
    assert not model.HasField("sampling_defaults")
    assert listed["sampling_defaults"] == {}


async def test_a_model_that_states_none_has_ours() -> None:
    served = worker()
    async with GatewayRig() as rig:
        await rig.add(served)
        await Stream.read(rig.stub.Generate(pb.GenerateRequest(text="fox", max_tokens=1)))
    assert drawn(served) == OURS
