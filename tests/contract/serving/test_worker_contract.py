"""What every worker keeps, the real process (with the fake engine) and the fake worker alike."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from tests.support.fake_tokens import fake_embedding, fake_tokens
from tests.support.fake_worker import FakeWorker
from tests.support.running_worker import RunningWorker
from tests.support.session_client import SessionClient, tokens_of

from polyfleet.v1 import fleet_pb2 as fleet
from polyfleet.v1 import inference_pb2 as inference
from polyfleet.v1 import worker_pb2 as pb
from polyfleet.v1 import worker_pb2_grpc


@asynccontextmanager
async def worker_of(kind: str, folder: Path) -> AsyncIterator[str]:
    """A worker that takes 5 ms a token; its address."""
    if kind == "fake":
        async with FakeWorker(token_seconds=0.005) as fake:
            yield fake.address
    else:
        async with RunningWorker(folder, model="fake:step_seconds=0.005") as real:
            yield real.address


@pytest.fixture(params=["real", "fake"])
async def address(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    async with worker_of(request.param, tmp_path) as address:
        yield address


def start(name: str, *prompt: int, **more: object) -> pb.StartSequence:
    fields: dict[str, object] = {"max_tokens": 20, **more}
    return pb.StartSequence(sequence_id=name, prompt_ids=prompt, **fields)  # type: ignore[arg-type]


async def test_sequences_of_two_gateways_with_one_id_stay_apart(address: str) -> None:
    async with SessionClient(address, "g-1") as one, SessionClient(address, "g-2") as two:
        await one.start(start("r/0", 1, 2))
        await two.start(start("r/0", 3, 4, choice=1))
        first, second = await asyncio.gather(one.run_to_end(), two.run_to_end())
        assert tokens_of(first["r/0"]) == fake_tokens([1, 2], 20)
        assert tokens_of(second["r/0"]) == fake_tokens([3, 4], 20, choice=1)
        assert first["r/0"][-1].finish_reason == inference.FINISH_REASON_LENGTH


async def test_a_sequence_goes_on_behind_what_was_generated_elsewhere(address: str) -> None:
    async with SessionClient(address) as session:
        whole = fake_tokens([7], 20)
        await session.start(start("a", 7, generated_ids=whole[:15]))
        assert tokens_of((await session.run_to_end())["a"]) == whole[15:]


async def test_logprobs_are_parallel_to_tokens(address: str) -> None:
    async with SessionClient(address) as session:
        await session.start(start("with", 1, logprobs=2))
        await session.start(start("without", 1))
        seen = await session.run_to_end(2)
        for delta in seen["with"]:
            assert len(delta.logprobs) == len(delta.token_ids)
            assert all(len(each.top_ids) == len(each.top_logprobs) == 2 for each in delta.logprobs)
        assert not any(delta.logprobs for delta in seen["without"])


async def test_an_embedding_comes_whole_in_one_delta(address: str) -> None:
    async with SessionClient(address) as session:
        await session.start(start("e", 5, 6, pooling=inference.POOLING_MEAN, max_tokens=0))
        (delta,) = (await session.run_to_end())["e"]
        assert list(delta.embedding) == pytest.approx(fake_embedding([5, 6], 8))
        assert not delta.token_ids


async def test_an_idle_session_hears_the_status(address: str) -> None:
    async with SessionClient(address) as session:
        for _ in range(2):
            event = await session.event()
            assert not event.deltas
            assert event.status.state == fleet.WORKER_STATE_READY


async def test_a_cancelled_sequence_falls_silent_and_frees_its_place(address: str) -> None:
    async with SessionClient(address) as session:
        await session.start(start("long", 1, max_tokens=50_000))
        while (await session.event()).status.running_sequences != 1:
            pass
        await session.cancel("long")
        await session.cancel("never was")
        while (await session.event()).status.running_sequences:
            pass
        await session.start(start("next", 2))
        seen = await session.run_to_end()
        assert list(seen) == ["next"]


async def test_the_end_of_a_session_cancels_its_sequences_only(address: str) -> None:
    async with SessionClient(address, "g-stays") as stays:
        await stays.start(start("mine", 1, max_tokens=50_000))
        async with SessionClient(address, "g-goes") as goes:
            await goes.start(start("its", 2, max_tokens=50_000))
            while (await goes.event()).status.running_sequences != 2:
                pass
        while (await stays.event()).status.running_sequences != 1:
            pass
        assert {delta.sequence_id for delta in (await stays.event()).deltas} <= {"mine"}


async def test_a_draining_worker_refuses_new_sequences_and_finishes_the_others(address: str) -> None:
    async with SessionClient(address) as session:
        await session.start(start("old", 1, max_tokens=60))
        while (await session.event()).status.running_sequences != 1:
            pass
        async with grpc.aio.insecure_channel(address) as channel:
            drained = await worker_pb2_grpc.WorkerStub(channel).Drain(pb.WorkerDrainRequest())
        assert drained.running_sequences == 1
        await session.start(start("new", 2))
        seen = await session.run_to_end(2)
        assert seen["new"][-1].error.code == grpc.StatusCode.UNAVAILABLE.value[0]
        assert seen["old"][-1].finish_reason == inference.FINISH_REASON_LENGTH
