"""Adapters at the gateway: served by name, placed where they are, and moved to none but workers that have them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx2 as httpx
import pytest
from tests.support.fake_tokens import fake_adapted, fake_fingerprint
from tests.support.fake_worker import FakeWorker, fake_token
from tests.support.gateway_rig import MODEL, VOCABULARY, GatewayRig, Stream, failure_of, text_worker, until

from polyfleet.v1 import fleet_pb2
from polyfleet.v1 import inference_pb2 as pb
from polyfleet.wire.hashing import adapter_salt, grain_numbers

SOURCES = {"a": "/adapters/a", "b": "/adapters/b"}


@pytest.fixture
async def rig() -> AsyncIterator[GatewayRig]:
    async with GatewayRig(queue_timeout=0.3) as rig:
        yield rig


def worker(worker_id: str, *adapters: str, **options: Any) -> FakeWorker:
    made = text_worker(worker_id, fingerprint="f", **options)
    made.adapters = {name: SOURCES.get(name, f"/{name}") for name in adapters}
    return made


def request(model: str, count: int = 5) -> pb.GenerateRequest:
    return pb.GenerateRequest(model=model, token_ids=[4, 5], max_tokens=count)


def expected(count: int, adapter: str = "") -> list[int]:
    prompt = fake_adapted([4, 5], fake_fingerprint(SOURCES[adapter]) if adapter else "")
    return [fake_token(prompt, index, 0, VOCABULARY) for index in range(count)]


async def test_each_name_finds_its_adapter_where_it_is(rig: GatewayRig) -> None:
    await rig.add(worker("w-1"), worker("w-2", "a"), worker("w-3", "a", "b"))
    for model, adapter, there in (
        ("a", "a", {"w-2", "w-3"}),
        (f"{MODEL}:a", "a", {"w-2", "w-3"}),
        ("b", "b", {"w-3"}),
        (MODEL, "", {"w-1", "w-2", "w-3"}),
        ("", "", {"w-1", "w-2", "w-3"}),
    ):
        streams = [await Stream.read(rig.stub.Generate(request(model))) for _ in range(3)]
        assert [stream.ids() for stream in streams] == [expected(5, adapter)] * 3
        assert {stream.workers()[0] for stream in streams} <= there


async def test_models_list_them_with_their_parent(rig: GatewayRig) -> None:
    await rig.add(worker("w-1", "a", "b"))
    models = (await rig.stub.ListModels(pb.ListModelsRequest())).models
    assert [(each.name, each.parent, each.ready_workers) for each in models] == [
        (MODEL, "", 1),
        ("a", MODEL, 1),
        ("b", MODEL, 1),
    ]
    async with httpx.AsyncClient(base_url=rig.http, trust_env=False) as http:
        listed = (await http.get("/v1/models")).json()["data"]
        assert [(each["id"], each.get("parent")) for each in listed] == [(MODEL, None), ("a", MODEL), ("b", MODEL)]
        one = (await http.get(f"/v1/models/{MODEL}:a")).json()
        assert (one["id"], one["parent"]) == (f"{MODEL}:a", MODEL)
        body = {"model": "a", "prompt": "the fox", "max_tokens": 2}
        answer = (await http.post("/v1/completions", json=body)).json()
        assert answer["model"] == "a"
        unnamed = (await http.post("/v1/completions", json={"prompt": "the fox", "max_tokens": 2})).json()
        assert unnamed["model"] == MODEL


@pytest.mark.parametrize("name", ["c", f"{MODEL}:c", "other:a", f"{MODEL}:", "a:", "../a", "<b>a</b>"])
async def test_unknown_names_are_not_found(name: str, rig: GatewayRig) -> None:
    await rig.add(worker("w-1", "a"))
    failure = await failure_of(Stream.read(rig.stub.Generate(request(name))))
    assert failure.code is grpc.StatusCode.NOT_FOUND
    assert failure.message == f"There is no model {name!r}; served models: {MODEL}, a."


async def test_a_name_that_something_else_has_needs_its_model(rig: GatewayRig) -> None:
    other = FakeWorker("w-2", "b", fingerprint="g", vocabulary_size=VOCABULARY)
    other.adapters = {"a": SOURCES["a"]}
    await rig.add(worker("w-1", "a", "b"), other)
    models = (await rig.stub.ListModels(pb.ListModelsRequest())).models
    assert [each.name for each in models] == ["b", MODEL, "b:a", f"{MODEL}:a", f"{MODEL}:b"]
    assert (await Stream.read(rig.stub.Generate(request("b")))).ids() == expected(5)  # the model of that name
    assert (await Stream.read(rig.stub.Generate(request(f"{MODEL}:b")))).ids() == expected(5, "b")
    failure = await failure_of(Stream.read(rig.stub.Generate(request("a"))))
    assert failure.code is grpc.StatusCode.NOT_FOUND


async def test_one_that_no_worker_has_yet_is_waited_for(rig: GatewayRig) -> None:
    wish = fleet_pb2.ModelDeployment(name="d", model_name=MODEL, workers=1)
    wish.adapters.add(name="a", source=SOURCES["a"])
    rig.fleet.deployments.append(wish)
    await rig.add(worker("w-1"))
    failure = await failure_of(Stream.read(rig.stub.Generate(request("a"))))
    assert failure.code is grpc.StatusCode.UNAVAILABLE
    assert failure.message.startswith(f"Adapter a of model {MODEL} is being loaded.")
    await rig.add(worker("w-2", "a", "bad"))
    assert (await Stream.read(rig.stub.Generate(request("a")))).ids() == expected(5, "a")
    failure = await failure_of(Stream.read(rig.stub.Generate(request("bad"))))
    assert failure.code is grpc.StatusCode.FAILED_PRECONDITION
    assert failure.message == f"Adapter bad of model {MODEL} can't be served: /bad: is no adapter"


async def test_a_stream_moves_to_a_worker_that_has_its_adapter(rig: GatewayRig) -> None:
    first, last = worker("w-1", "a", token_seconds=0.002), worker("w-9", "a")
    await rig.add(first)
    call = rig.stub.Generate(request("a", 200))
    await until(lambda: any(each.generated >= 20 for each in first.sequences.values()))
    await rig.add(worker("w-2"), worker("w-3", "b"), last)
    await rig.drop(first)
    stream = await Stream.read(call)
    assert stream.ids() == expected(200, "a")
    assert stream.workers() == ["w-1", "w-9"]
    assert {start.adapter for start in (*first.started, *last.started)} == {fake_fingerprint(SOURCES["a"])}


async def test_a_stream_whose_adapter_is_gone_ends_as_data_loss_and_not_as_another_models(rig: GatewayRig) -> None:
    first, others = worker("w-1", "a", token_seconds=0.002), (worker("w-2"), worker("w-3", "b"))
    await rig.add(first)
    failing = asyncio.create_task(failure_of(rig.stub.Generate(request("a", 200))))
    await until(lambda: any(each.generated >= 20 for each in first.sequences.values()))
    await rig.add(*others)
    await rig.drop(first)
    failure = await failing
    rig.gateway.ledger.check()
    assert failure.code is grpc.StatusCode.DATA_LOSS
    assert "can't be resumed" in failure.message
    assert "adapter" in failure.message
    assert not [each for other in others for each in other.started]


async def test_prefixes_are_an_adapters_own_in_the_map_too(rig: GatewayRig) -> None:
    await rig.add(worker("w-1", "a"))
    ids = [index % 200 for index in range(130)]
    await Stream.read(rig.stub.Generate(pb.GenerateRequest(model="a", token_ids=ids, max_tokens=1)))
    own = grain_numbers(ids, adapter_salt(b"", fake_fingerprint(SOURCES["a"])))
    assert rig.gateway.view.prefixes.cached_tokens(own) == {"w-1": 128}
    assert not rig.gateway.view.prefixes.cached_tokens(grain_numbers(ids))
