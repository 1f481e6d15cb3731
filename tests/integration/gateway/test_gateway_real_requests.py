"""Images and adapters through a gateway to the real engine: what moves stays the same, what does not fit is told."""

import asyncio
import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
from tests.integration.gateway.test_gateway_images import bodies
from tests.integration.gateway.test_gateway_real_moves import LONG, SHAPE, both, said, streamed
from tests.support import tiny_vision
from tests.support.gateway_rig import failure_of
from tests.support.peft_folders import low_rank_tensors, write_adapter
from tests.support.real_fleet import real_fleet
from tests.support.tiny_models import write_gguf
from tests.support.tiny_tokenizers import byte_level_metadata
from tests.support.tiny_vision import encoded, picture

from polyfleet.client import Image, Message
from polyfleet.v1 import inference_pb2 as pb


def shows(seed: int) -> list[Message]:
    return [Message("user", (Image(encoded(picture(50, 30, seed=seed))), "What is it?"))]


async def test_images_are_seen_by_the_worker_that_goes_on(tmp_path: Path) -> None:
    """Over each API that shows them; another image has another answer."""
    tiny_vision.make(tmp_path / "model")
    data = base64.b64encode(encoded(picture(50, 30))).decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    async with real_fleet(tmp_path, tmp_path / "model", [], []) as fleet:
        asked: dict[str, Any] = {"temperature": 0, "logprobs": 0, **LONG}
        seen = await both(fleet, {"messages": shows(0), **asked})
        assert said(await fleet.client.generate(model="fake", messages=shows(1), **asked)) != said(seen)
        for path, body in bodies(f"data:image/png;base64,{data}", source).items():
            length = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
            assert await streamed(fleet, path, body | {length: 160, "temperature": 0}), path


async def test_adapters_that_do_not_fit_are_told_of_while_others_answer(tmp_path: Path) -> None:
    """Live, by the worker's RPC; then asked for over both doors."""
    model = tmp_path / "tiny.gguf"
    tensors = write_gguf(model, SHAPE, "Q8_0", extra=byte_level_metadata())
    other = write_gguf(tmp_path / "other.gguf", replace(SHAPE, hidden=128), "Q8_0", extra=byte_level_metadata())
    (tmp_path / "empty").mkdir()
    sources = {
        "fits": write_adapter(tmp_path / "fits", low_rank_tensors(tensors, size=0.3)),
        "foreign": write_adapter(tmp_path / "foreign", low_rank_tensors(other)),
        "wide": write_adapter(tmp_path / "wide", low_rank_tensors(tensors, rank=32)),
        "empty": tmp_path / "empty",
        "absent": tmp_path / "absent",
    }
    told = {"foreign": "128", "wide": "is 32, this deployment takes up to 16 (max_rank)"}
    told |= {"empty": "the folder has no adapter_config.json", "absent": "absent"}
    async with real_fleet(tmp_path, model, ["--max-adapters", "4"]) as fleet:
        asked: dict[str, Any] = {"prompt": "hello", "temperature": 0, **LONG}
        alone = await fleet.client.generate(model="fake", **asked)
        going = asyncio.create_task(fleet.client.generate(model="fake", **asked))
        found = await fleet.set_adapters(sources)
        assert [name for name, each in found.items() if not each.problem] == ["fits"]
        for name, problem in told.items():
            sentence = found[name].problem
            assert problem in sentence, sentence
            assert "\n" not in sentence
            failure = await failure_of(fleet.rig.stub.Generate(pb.GenerateRequest(model=name, text="hello")))
            assert failure.code is grpc.StatusCode.FAILED_PRECONDITION
            assert failure.message == f"Adapter {name} of model fake can't be served: {sentence}"
            reply = await fleet.http.post("/v1/completions", json={"model": name, "prompt": "hello"})
            assert (reply.status_code, reply.json()["error"]["message"]) == (400, failure.message)
        assert said(await going) == said(alone)
        assert said(await fleet.client.generate(model="fits", **asked)) != said(alone)
        assert not await fleet.set_adapters({})
        gone = await fleet.http.post("/v1/completions", json={"model": "fits", "prompt": "hello"})
        assert gone.status_code == 404
        assert said(await fleet.client.generate(model="fake", **asked)) == said(alone)
