"""A worker loads and drops adapters while it serves: a real worker process with the fake engine, over gRPC."""

from pathlib import Path

import grpc
import pytest
from tests.support.fake_tokens import fake_adapted, fake_fingerprint, fake_tokens
from tests.support.running_worker import RunningWorker
from tests.support.session_client import SessionClient

from polyfleet.v1 import fleet_pb2 as fleet
from polyfleet.v1 import worker_pb2 as pb

PROMPT = [7] * 8


async def run(session: SessionClient, adapter: str) -> list[pb.SequenceDelta]:
    start = pb.StartSequence(sequence_id="s", prompt_ids=PROMPT, max_tokens=3, adapter=adapter)
    await session.start(start)
    return (await session.run_to_end())["s"]


def ids(deltas: list[pb.SequenceDelta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


async def test_adapters_come_and_go(tmp_path: Path) -> None:
    given = ["--adapter", "first=/a"]
    async with RunningWorker(tmp_path, *given, model="fake:canary=0") as worker, worker.session("g") as session:
        stub, a, b = session.stub, fake_fingerprint("/a"), fake_fingerprint("/b")

        async def have(**sources: str) -> dict[str, fleet.Adapter]:
            wanted = [fleet.Adapter(name=name, source=source) for name, source in sources.items()]
            answer = await stub.SetAdapters(pb.SetAdaptersRequest(adapters=wanted))
            announced = (await stub.Status(pb.StatusRequest())).info.model.adapters
            assert list(announced) == list(answer.adapters)
            return {each.name: each for each in answer.adapters}

        assert ids(await run(session, a)) == fake_tokens(fake_adapted(PROMPT, a), 3)
        assert ids(await run(session, "")) == fake_tokens(PROMPT, 3)
        (refused,) = await run(session, b)
        assert (refused.error.code, refused.error.message) == (
            14,
            "The worker does not have the adapter, or no longer.",
        )

        found = await have(first="/a", second="/b", third="/bad", again="/b")
        assert {name: each.fingerprint for name, each in found.items()} == {
            "first": a, "second": b, "third": "", "again": b,
        }  # fmt: skip
        assert found["third"].problem == "/bad: the folder has no adapter_config.json, so it is no adapter"
        assert ids(await run(session, b)) == fake_tokens(fake_adapted(PROMPT, b), 3)
        await have(again="/b")
        assert ids(await run(session, b)) == fake_tokens(fake_adapted(PROMPT, b), 3)
        (refused,) = await run(session, a)
        assert refused.error.code == 14
        assert not await have()
        (refused,) = await run(session, b)
        assert refused.error.code == 14
        with pytest.raises(grpc.aio.AioRpcError, match="must be 1 to 64 of"):
            await have(**{"a/b": "/c"})


async def test_a_worker_that_begins_with_what_is_none_does_not_begin(tmp_path: Path) -> None:
    async with RunningWorker(tmp_path, "--adapter", "x=/bad", model="fake:canary=0", wait_ready=False) as worker:
        assert await worker.exit_status() == 3
        assert "/bad: the folder has no adapter_config.json" in worker.errors
