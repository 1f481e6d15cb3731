"""Workers of one model name that differ in weights or tokenizer: no request meets both."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from tests.support.fake_worker import FakeWorker, fake_token, fleet_state
from tests.support.gateway_rig import MODEL, VOCABULARY, GatewayRig, Stream, failure_of, until
from tests.support.text_assets import assets_document, byte_level_tokenizer
from tokenizers import Tokenizer

from polyfleet.text.model_text import ModelText
from polyfleet.v1 import inference_pb2 as pb

REQUEST = pb.GenerateRequest(token_ids=[4, 5], max_tokens=200)
TEXT = "the quick fox"


def other_assets() -> bytes:
    """Another tokenizer: the same words have other ids."""
    tokenizer = Tokenizer.from_str(byte_level_tokenizer().to_str())
    tokenizer.add_tokens(["the quick"])
    return assets_document(tokenizer)


ASSETS = {"old": assets_document(), "new": other_assets()}
SHIFT = {"old": 0, "new": 1}


def worker(worker_id: str, revision: str, **options: Any) -> FakeWorker:
    """Its tokens tell its revision."""

    def token(prompt: Any, index: int, choice: int) -> int:
        return (fake_token(prompt, index, choice, VOCABULARY) + SHIFT[revision]) % VOCABULARY

    return FakeWorker(
        worker_id,
        MODEL,
        assets=options.pop("assets", ASSETS[revision]),
        fingerprint=revision,
        vocabulary_size=VOCABULARY + 1,
        tokens=token,
        **options,
    )


def expected(count: int, revision: str, choice: int = 0) -> list[int]:
    return [(fake_token([4, 5], i, choice, VOCABULARY) + SHIFT[revision]) % VOCABULARY for i in range(count)]


@pytest.fixture
async def rig() -> AsyncIterator[GatewayRig]:
    async with GatewayRig(queue_timeout=0.5) as rig:
        yield rig


async def started(each: FakeWorker, tokens: int = 20) -> None:
    await until(lambda: any(sequence.generated >= tokens for sequence in each.sequences.values()))


async def test_prompts_are_encoded_for_the_worker_that_computes_them(rig: GatewayRig) -> None:
    await rig.add(worker("w-1", "new"), worker("w-2", "old"), worker("w-3", "old"))
    ids = {revision: ModelText(ASSETS[revision]).encode(TEXT) for revision in ASSETS}
    assert ids["old"] != ids["new"]
    streams = [await Stream.read(rig.stub.Generate(pb.GenerateRequest(text=TEXT, max_tokens=5))) for _ in range(8)]
    assert {stream.workers()[0] for stream in streams} <= {"w-2", "w-3"}
    more = [worker(f"w-{number}", "new") for number in (4, 5)]
    await rig.add(*more)
    stream = await Stream.read(rig.stub.Generate(pb.GenerateRequest(text=TEXT, max_tokens=5, n=8)))
    assert {stream.workers(choice)[0] for choice in range(8)} <= {"w-1", "w-4", "w-5"}
    assert all(list(start.prompt_ids) == ids["new"] for each in more for start in each.started)
    assert list((await rig.stub.Tokenize(pb.TokenizeRequest(text=TEXT))).token_ids) == ids["new"]


async def test_a_stream_moves_to_its_own_revision_alone(rig: GatewayRig) -> None:
    first, second = worker("w-1", "old", token_seconds=0.002), worker("w-2", "old")
    await rig.add(first)
    request = pb.GenerateRequest(token_ids=[4, 5], max_tokens=200, n=2)
    reading = asyncio.create_task(Stream.read(rig.stub.Generate(request)))
    await started(first)
    new = [worker(f"w-new-{i}", "new") for i in range(3)]
    await rig.add(*new)
    await first.kill()
    await asyncio.sleep(0.1)
    await rig.add(second)
    stream = await reading
    for choice in range(2):
        assert stream.ids(choice) == expected(200, "old", choice)
        assert stream.workers(choice) == ["w-1", "w-2"]
    assert not any(each.started for each in new)


async def test_a_stream_whose_revision_is_gone_says_so(rig: GatewayRig) -> None:
    first, second = worker("w-1", "old", token_seconds=0.002), worker("w-2", "new")
    await rig.add(first)
    failing = asyncio.create_task(failure_of(rig.stub.Generate(REQUEST)))
    await started(first)
    await rig.add(second)
    await rig.drop(first)
    failure = await failing
    assert failure.code is grpc.StatusCode.DATA_LOSS
    assert "w-2: has other weights or another tokenizer of this name" in failure.message
    assert not second.started


async def test_streams_in_flight_finish_on_the_old_revision_and_new_ones_start_on_the_new(rig: GatewayRig) -> None:
    old, new = worker("w-1", "old", token_seconds=0.002), worker("w-2", "new")
    await rig.add(old)
    reading = asyncio.create_task(Stream.read(rig.stub.Generate(REQUEST)))
    await started(old)
    await rig.add(new)
    old.set_state(fleet_state("DRAINING"))
    await until(lambda: rig.gateway.view.num_ready() == 1)
    other = await Stream.read(rig.stub.Generate(REQUEST))
    stream = await reading
    assert (stream.ids(), stream.workers()) == (expected(200, "old"), ["w-1"])
    assert (other.ids(), other.workers()) == (expected(200, "new"), ["w-2"])


@pytest.mark.parametrize("same_tokenizer", [True, False])
async def test_requests_that_wait_change_over_where_their_ids_mean_the_same(same_tokenizer: bool) -> None:
    patience = 60.0 if same_tokenizer else 1.0  # what changes over must, what can't gives up
    async with GatewayRig(max_concurrent=1, queue_timeout=patience) as rig:
        old = worker("w-1", "old", token_seconds=0.002)
        new = worker("w-2", "new", **({"assets": ASSETS["old"]} if same_tokenizer else {}))
        await rig.add(old)
        running = asyncio.create_task(Stream.read(rig.stub.Generate(REQUEST)))
        await started(old)
        waiting = asyncio.create_task(failure_or_stream(rig.stub.Generate(REQUEST)))
        registry = rig.gateway.metrics.registry
        await until(lambda: registry.get_sample_value("polyfleet_requests_queued", {"model": MODEL}) == 1)
        await rig.add(new)
        old.set_state(fleet_state("DRAINING"))
        assert (await running).ids() == expected(200, "old")
        ended = await waiting
    if same_tokenizer:
        assert isinstance(ended, Stream)
        assert (ended.ids(), ended.workers()) == (expected(200, "new"), ["w-2"])
    else:
        assert ended is grpc.StatusCode.UNAVAILABLE


async def failure_or_stream(call: Any) -> Any:
    try:
        return await Stream.read(call)
    except grpc.aio.AioRpcError as error:
        return error.code()
