"""The fake worker keeps the contract that it stands in for."""

import asyncio
import gc

import grpc
import pytest
from tests.support.fake_worker import FakeWorker, fake_embedding, fake_tokens, fleet_state
from tests.support.session_client import SessionClient, tokens_of

from polyfleet.v1 import inference_pb2 as inference
from polyfleet.v1 import worker_pb2 as pb


async def test_tokens_are_a_function_of_prompt_and_index_across_resumption() -> None:
    async with FakeWorker() as worker, SessionClient(worker.address) as session:
        want = fake_tokens([5, 6], 10, choice=2)
        await session.start(pb.StartSequence(sequence_id="a", prompt_ids=[5, 6], choice=2, max_tokens=10))
        deltas = (await session.run_to_end())["a"]
        assert tokens_of(deltas) == want
        assert deltas[-1].finish_reason == inference.FINISH_REASON_LENGTH
        resumed = pb.StartSequence(sequence_id="b", prompt_ids=[5, 6], generated_ids=want[:4], choice=2, max_tokens=10)
        await session.start(resumed)
        assert tokens_of((await session.run_to_end())["b"]) == want[4:]
        assert not worker.sequences


async def test_stop_token_is_not_returned_and_embedding_is_known() -> None:
    async with FakeWorker(hidden_size=4) as worker, SessionClient(worker.address) as session:
        want = fake_tokens([1], 5)
        stop = pb.StartSequence(sequence_id="a", prompt_ids=[1], max_tokens=10, stop_token_ids=[want[3]], logprobs=2)
        await session.start(stop)
        deltas = (await session.run_to_end())["a"]
        assert tokens_of(deltas) == want[:3]
        assert [list(delta.logprobs[0].top_ids) for delta in deltas[:-1]] == [[t, (t + 1) % 1000] for t in want[:3]]
        assert deltas[-1].finish_reason == inference.FINISH_REASON_STOP
        await session.start(pb.StartSequence(sequence_id="e", prompt_ids=[9], pooling=inference.POOLING_MEAN))
        (delta,) = (await session.run_to_end())["e"]
        assert list(delta.embedding) == pytest.approx(fake_embedding([9], 4))


async def test_dropped_session_ends_unavailable_after_exactly_so_many_tokens() -> None:
    async with FakeWorker() as worker:
        async with SessionClient(worker.address) as session:
            worker.drop_after(7)
            await session.start(pb.StartSequence(sequence_id="a", prompt_ids=[1], max_tokens=1000))
            seen, code = await session.read_until_broken()
            assert (tokens_of(seen), code) == (fake_tokens([1], 7), grpc.StatusCode.UNAVAILABLE)
        async with SessionClient(worker.address) as session:
            await session.start(pb.StartSequence(sequence_id="a", prompt_ids=[1], max_tokens=3))
            assert tokens_of((await session.run_to_end())["a"]) == fake_tokens([1], 3)


async def test_cancel_and_session_end_free_sequences() -> None:
    async with FakeWorker(token_seconds=0.01) as worker:
        async with SessionClient(worker.address) as session:
            for name in ("a", "b"):
                await session.start(pb.StartSequence(sequence_id=name, prompt_ids=[1], max_tokens=100_000))
            await session.cancel("a")
            while worker.cancelled != ["a"]:
                await session.event()
            assert [key[1] for key in worker.sequences] == ["b"]
        while worker.sequences or worker.sessions:
            await asyncio.sleep(0.01)
        assert worker.cancelled == ["a", "b"]


async def test_draining_and_killed_are_unavailable() -> None:
    async with FakeWorker() as worker, SessionClient(worker.address) as session:
        worker.set_state(fleet_state("DRAINING"))
        await session.start(pb.StartSequence(sequence_id="a", prompt_ids=[1], max_tokens=3))
        (delta,) = (await session.run_to_end())["a"]
        assert delta.error.code == grpc.StatusCode.UNAVAILABLE.value[0]
        await worker.kill()
        assert (await session.read_until_broken())[1] == grpc.StatusCode.UNAVAILABLE


async def test_a_session_leaves_no_task_behind_whoever_ends_it() -> None:
    told = list[str]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["message"]))
    for who in ("gateway", "worker"):
        async with FakeWorker() as worker, SessionClient(worker.address) as session:
            await session.event()
            await (session.channel.close(None) if who == "gateway" else worker.kill())
            while worker.sessions:
                await asyncio.sleep(0.01)
        gc.collect()
        assert told == [], who
