"""Sessions of the real worker process: bad input, slow readers, limits."""

import asyncio
from pathlib import Path

import grpc
import pytest
from tests.support.fake_tokens import fake_tokens
from tests.support.running_worker import RunningWorker
from tests.support.session_client import SessionClient, ended, tokens_of

from polyfleet.v1 import fleet_pb2 as fleet
from polyfleet.v1 import worker_pb2 as pb

INVALID_ARGUMENT, FAILED_PRECONDITION = 3, 9


def start(name: str, *prompt: int, **more: object) -> pb.StartSequence:
    return pb.StartSequence(sequence_id=name, prompt_ids=prompt, **{"max_tokens": 5, **more})  # type: ignore[arg-type]


async def test_bad_fields_are_named_and_harm_nobody(tmp_path: Path) -> None:
    async with RunningWorker(tmp_path, model="fake:step_seconds=0.01") as worker, worker.session() as session:
        await session.start(start("good", 1, max_tokens=30))
        bad = {
            "empty": start("empty"),
            "unknown id": start("unknown id", 1, 5000),
            "no tokens": start("no tokens", 1, max_tokens=0),
            "nan": start("nan", 1, sampling={"temperature": float("nan")}),
            "hot": start("hot", 1, sampling={"temperature": 3}),
            "logprobs": start("logprobs", 1, logprobs=21),
            "pooling": start("pooling", 1, pooling=9),
        }
        for each in bad.values():
            await session.start(each)
        seen = await session.run_to_end(1 + len(bad))
        errors = {name: deltas[-1].error for name, deltas in seen.items() if name != "good"}
        assert {name: error.code for name, error in errors.items()} == dict.fromkeys(bad, INVALID_ARGUMENT)
        fields = {name: error.message.partition(":")[0] for name, error in errors.items()}
        assert fields == {
            "empty": "prompt_ids", "unknown id": "prompt_ids", "no tokens": "max_tokens", "pooling": "pooling",
            "nan": "sampling.temperature", "hot": "sampling.temperature", "logprobs": "logprobs",
        }  # fmt: skip
        assert tokens_of(seen["good"]) == fake_tokens([1], 30)


async def test_a_status_says_which_starts_it_counts(tmp_path: Path) -> None:
    """While the engine is in a step it hears nothing: heartbeats come, but with a status from before."""
    async with RunningWorker(tmp_path, model="fake:step_seconds=1.2,canary=0") as worker, worker.session() as session:
        seen: list[tuple[int, int]] = []

        async def until_reported(count: int) -> None:
            while not seen or seen[-1][0] < count:
                event = await session.event()
                status = event.status
                seen.append((event.reported_starts, status.running_sequences + status.waiting_sequences))

        await session.start(start("a", 1, max_tokens=9))
        await until_reported(1)
        await session.start(start("wrong"))
        for name in "bc":
            await session.start(start(name, 1, max_tokens=9))
        await until_reported(4)
        assert [reported for reported, _ in seen] == sorted(reported for reported, _ in seen)
        assert {held for reported, held in seen if reported == 0} == {0}
        assert {held for reported, held in seen if 1 <= reported < 4} == {1}
        assert seen[-1] == (4, 3)


async def test_an_id_that_is_open_already_ends_with_the_error(tmp_path: Path) -> None:
    async with RunningWorker(tmp_path, model="fake:step_seconds=0.01") as worker, worker.session() as session:
        await session.start(start("a", 1, max_tokens=50_000))
        while not (await session.event()).deltas:
            pass
        await session.start(start("a", 2))
        assert (await session.run_to_end())["a"][-1].error.code == INVALID_ARGUMENT
        while (await session.event()).status.running_sequences:
            pass
        await session.start(start("a", 3))
        assert tokens_of((await session.run_to_end())["a"]) == fake_tokens([3], 5)


async def test_a_worker_without_a_model_says_so(tmp_path: Path) -> None:
    async with RunningWorker(tmp_path) as worker, worker.session() as session:
        assert (await session.event()).status.state == fleet.WORKER_STATE_STARTING
        await session.start(start("a", 1))
        (delta,) = (await session.run_to_end())["a"]
        assert (delta.error.code, delta.error.message) == (FAILED_PRECONDITION, "The worker has no model.")


async def test_a_session_begins_with_hello(tmp_path: Path) -> None:
    async with RunningWorker(tmp_path) as worker:
        for first in (pb.SessionCommand(start=start("a", 1)), pb.SessionCommand(hello=pb.Hello())):
            session = SessionClient(worker.address)
            await session.call.write(first)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await session.event()
            assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            await session.channel.close(None)


async def test_a_slow_reader_slows_only_itself_and_loses_nothing(tmp_path: Path) -> None:
    """The stalled session's tokens carry 20 logprobs each, far more bytes than HTTP/2's windows hold."""
    model = "fake:step_tokens=200,max_sequences=8"
    count = 40_000
    async with RunningWorker(tmp_path, model=model) as worker, worker.session("slow") as slow:
        for number in range(3):
            await slow.start(start(f"s{number}", number + 1, max_tokens=count, logprobs=20))
        async with worker.session("quick") as quick:
            await quick.start(start("q", 9, max_tokens=2000))
            assert tokens_of((await quick.run_to_end())["q"]) == fake_tokens([9], 2000)
            while (await quick.event()).status.running_sequences:
                pass  # the engine has finished the slow session's sequences too, though nobody reads them
        seen = await slow.run_to_end(3)
        for number in range(3):
            deltas = seen[f"s{number}"]
            assert tokens_of(deltas) == fake_tokens([number + 1], count)
            assert all(len(delta.logprobs) == len(delta.token_ids) for delta in deltas)
            assert any(len(delta.token_ids) > 200 for delta in deltas), "news of several steps came as one"
            assert all(len(delta.token_ids) <= 2048 for delta in deltas)


async def test_many_sequences_share_steps_and_events(tmp_path: Path) -> None:
    async with RunningWorker(tmp_path, model="fake:max_sequences=32,step_seconds=0.002,canary=0") as worker:
        async with worker.session() as session:
            for number in range(100):
                await session.start(start(str(number), number + 1, max_tokens=20))
            left, events_with_many = 100, 0
            tokens: dict[str, list[int]] = {}
            while left:
                event = await session.event()
                names = [delta.sequence_id for delta in event.deltas]
                events_with_many += len(set(names)) > 1
                for delta in event.deltas:
                    tokens.setdefault(delta.sequence_id, []).extend(delta.token_ids)
                    left -= ended(delta)
        assert tokens == {str(number): fake_tokens([number + 1], 20) for number in range(100)}
        assert events_with_many > 20
        counters = (await worker.status()).status.counters
        assert (counters.admitted, counters.finished, counters.cancelled) == (100, 100, 0)


async def test_a_burst_of_cancels_balances(tmp_path: Path) -> None:
    async with RunningWorker(tmp_path, model="fake:max_sequences=4,step_seconds=0.001,canary=0") as worker:
        async with worker.session() as session:
            reader = asyncio.create_task(session.run_to_end(10**9))
            for number in range(200):
                await session.start(start(str(number), 1, max_tokens=number % 7 + 1))
                if number % 3 == 0:
                    await session.cancel(str(number - number % 5))
            while (status := (await worker.status()).status).running_sequences or status.counters.admitted < 200:
                await asyncio.sleep(0.01)
            reader.cancel()
        counters = status.counters
        assert counters.finished + counters.cancelled == counters.admitted == 200
        assert status.waiting_sequences == 0
        assert status.free_blocks == 1000
