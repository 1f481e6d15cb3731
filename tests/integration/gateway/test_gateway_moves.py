"""Workers that die, hang or drain: one unbroken, identical stream for the client, or a status that says why."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from tests.support.fake_worker import FakeWorker, fake_tokens, fleet_state
from tests.support.gateway_rig import (
    MODEL,
    VOCABULARY,
    GatewayRig,
    Stream,
    failure_of,
    text_worker,
    until,
)
from tests.support.text_assets import assets_document

from polyfleet.gateway.fleet import session as session_module
from polyfleet.text.model_text import ModelText
from polyfleet.v1 import inference_pb2 as pb
from polyfleet.v1 import worker_pb2

TEXT = ModelText(assets_document())
PROMPT = [4, 5]
SHORT = pb.GenerateRequest(token_ids=PROMPT, max_tokens=3)
REQUEST = pb.GenerateRequest(token_ids=PROMPT, max_tokens=200)


def expected(count: int, choice: int = 0) -> list[int]:
    return fake_tokens(PROMPT, count, choice, VOCABULARY)


def slow(worker_id: str, **options: Any) -> FakeWorker:
    return text_worker(worker_id, token_seconds=0.002, **options)


class HangingWorker(FakeWorker):
    """Says nothing any more, not even a heartbeat, once `hung` is set."""

    hung = False

    async def Session(self, requests: Any, context: Any) -> AsyncIterator[worker_pb2.SessionEvent]:
        async for event in super().Session(requests, context):
            if self.hung:
                await asyncio.Event().wait()
            yield event


async def started(worker: FakeWorker, tokens: int = 20) -> None:
    """Wait until the worker's first sequence has this many tokens."""
    await until(lambda: any(each.generated >= tokens for each in worker.sequences.values()))


@pytest.mark.parametrize("n", [1, 3])
async def test_a_killed_worker_leaves_no_trace_in_the_stream(n: int) -> None:
    first, second = slow("w-1"), slow("w-2")
    async with GatewayRig() as rig:
        await rig.add(first)
        reading = asyncio.create_task(
            Stream.read(rig.stub.Generate(pb.GenerateRequest(token_ids=PROMPT, max_tokens=200, n=n)))
        )
        await started(first)
        await rig.add(second)
        await first.kill()
        stream = await reading
        assert rig.gateway.ledger.finished == 1
        moved = rig.gateway.metrics.registry.get_sample_value("polyfleet_migrations_total", {"result": "resumed"})
    for choice in range(n):
        assert stream.ids(choice) == expected(200, choice)
        assert stream.text(choice) == TEXT.decode(expected(200, choice))
        assert stream.workers(choice) == ["w-1", "w-2"]
    assert moved == n
    assert stream.usage == pb.Usage(prompt_tokens=2, completion_tokens=200 * n)
    for start in second.started:
        assert list(start.prompt_ids) == PROMPT
        assert len(start.generated_ids) >= 20
        assert list(start.generated_ids) == expected(len(start.generated_ids), start.choice)
        assert start.max_tokens == 200
        assert start.sampling == first.started[0].sampling


async def test_the_same_worker_is_used_again_once_its_session_is_back() -> None:
    worker = slow("w-1")
    async with GatewayRig() as rig:
        await rig.add(worker)
        reading = asyncio.create_task(Stream.read(rig.stub.Generate(REQUEST)))
        await started(worker)
        worker.drop_sessions()
        stream = await reading
    assert stream.ids() == expected(200)
    assert len(worker.started) == 2


async def test_a_silent_worker_counts_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "TICK_SECONDS", 0.15)  # x 6: still longer than the heartbeat's 0.5 s
    first, second = HangingWorker("w-1", MODEL, token_seconds=0.002), FakeWorker("w-2", MODEL)
    async with GatewayRig() as rig:
        await rig.add(first)
        reading = asyncio.create_task(Stream.read(rig.stub.Generate(REQUEST)))
        await started(first)
        first.hung = True
        await rig.add(second)
        stream = await reading
    assert stream.ids() == fake_tokens(PROMPT, 200)
    assert stream.workers() == ["w-1", "w-2"]


async def test_requests_at_once_are_shared_by_idle_workers() -> None:
    workers = [slow(f"w-{index}") for index in range(2)]
    async with GatewayRig() as rig:
        await rig.add(*workers)
        await asyncio.gather(*(Stream.read(rig.stub.Generate(REQUEST)) for _ in range(8)))
    assert max(len(each.started) for each in workers) <= 5


async def test_a_proxy_is_not_for_the_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # nobody is there
    async with GatewayRig() as rig:  # hears the scheduler
        await rig.add(text_worker("w-1"))  # and the worker


async def test_sessions_made_anew_are_counted() -> None:
    worker = text_worker("w-1")
    async with GatewayRig() as rig:
        await rig.add(worker)
        value = rig.gateway.metrics.registry.get_sample_value
        assert value("polyfleet_session_reconnects_total", {"worker_id": "w-1"}) == 0
        worker.drop_sessions()
        await until(lambda: (value("polyfleet_session_reconnects_total", {"worker_id": "w-1"}) or 0) > 0)
        await rig.drop(worker)
        await until(lambda: value("polyfleet_session_reconnects_total", {"worker_id": "w-1"}) is None)


async def test_a_stream_that_nobody_can_go_on_with_is_data_loss() -> None:
    worker = slow("w-1")
    async with GatewayRig(queue_timeout=0.3) as rig:
        await rig.add(worker)
        call = rig.stub.Generate(REQUEST)
        failing = asyncio.create_task(failure_of(call))
        await started(worker)
        await rig.drop(worker)
        failure = await failing
        assert rig.gateway.ledger.failed == 1
        rig.gateway.ledger.check()
    assert failure.code is grpc.StatusCode.DATA_LOSS
    assert "can't be resumed" in failure.message


async def test_a_stream_for_which_no_other_worker_has_room_is_data_loss_with_the_reason() -> None:
    first, small = slow("w-1"), text_worker("w-2", context_length=100)
    async with GatewayRig(queue_timeout=0.3) as rig:
        await rig.add(first)
        failing = asyncio.create_task(failure_of(rig.stub.Generate(REQUEST)))
        await started(first)
        await rig.add(small)
        await rig.drop(first)
        failure = await failing
        rig.gateway.ledger.check()
    assert failure.code is grpc.StatusCode.DATA_LOSS
    assert "can't be resumed" in failure.message
    assert "w-2" in failure.message
    assert not small.started


async def test_moves_are_bounded() -> None:
    worker = slow("w-1")
    async with GatewayRig(max_moves=1) as rig:
        await rig.add(worker)
        failing = asyncio.create_task(failure_of(rig.stub.Generate(REQUEST)))
        for generated in (20, 50):
            await started(worker, generated)
            worker.drop_sessions()
        failure = await failing
        assert rig.gateway.ledger.failed == 1
        rig.gateway.ledger.check()
    assert (failure.code, failure.retry_seconds) == (grpc.StatusCode.ABORTED, None)
    assert "lost its worker 2 times, and may move 1 times (limits.max_moves)" in failure.message
    assert len(worker.started) == 2


async def test_a_request_whose_steps_fail_on_each_device_ends_before_it_has_seen_all_workers() -> None:
    workers = [text_worker(f"w-{number}") for number in range(6)]
    for worker in workers:
        worker.refusal = (grpc.StatusCode.INTERNAL.value[0], "the step failed")
    async with GatewayRig(max_moves=2) as rig:
        await rig.add(*workers)
        failure = await failure_of(rig.stub.Generate(REQUEST))
    assert failure.code is grpc.StatusCode.ABORTED
    assert failure.message.endswith("The worker failed: the step failed.")
    assert sum(len(worker.started) for worker in workers) == 3


async def test_a_draining_worker_finishes_what_it_runs_and_gets_no_more() -> None:
    first, second = slow("w-1"), text_worker("w-2")
    async with GatewayRig() as rig:
        await rig.add(first)
        reading = asyncio.create_task(Stream.read(rig.stub.Generate(REQUEST)))
        await started(first)
        first.set_state(fleet_state("DRAINING"))
        await until(lambda: rig.gateway.view.num_ready() == 0)
        await rig.add(second)
        other = await Stream.read(rig.stub.Generate(REQUEST))
        stream = await reading
    assert (stream.workers(), other.workers()) == (["w-1"], ["w-2"])
    assert stream.ids() == other.ids() == expected(200)


async def test_requests_go_on_without_a_scheduler_and_through_its_return() -> None:
    worker = slow("w-1")
    async with GatewayRig() as rig:
        await rig.add(worker)
        reading = asyncio.create_task(Stream.read(rig.stub.Generate(REQUEST)))
        await started(worker)
        await rig.fleet.stop()
        assert (await Stream.read(rig.stub.Generate(REQUEST))).ids() == expected(200)
        rig.fleet.epoch = "e-2"  # a new life that knows no worker yet
        rig.fleet.workers.clear()
        await rig.fleet.start()
        await until(lambda: rig.gateway.view.snapshot().epoch == "e-2")
        assert (await Stream.read(rig.stub.Generate(REQUEST))).ids() == expected(200)
        assert (await reading).ids() == expected(200)
    assert len(worker.started) == 3


async def test_a_new_worker_takes_traffic_and_a_gone_one_is_forgotten() -> None:
    first, second = text_worker("w-1"), text_worker("w-2")
    async with GatewayRig() as rig:
        await rig.add(first)
        await Stream.read(rig.stub.Generate(REQUEST))
        await rig.add(second)
        for _ in range(20):
            await Stream.read(rig.stub.Generate(SHORT))
        assert first.started
        assert second.started
        await rig.drop(first)
        await until(lambda: list(rig.gateway.view.sessions) == ["w-2"])
        series = [
            sample.labels["worker_id"]
            for metric in rig.gateway.metrics.registry.collect()
            for sample in metric.samples
            if sample.name == "polyfleet_placements_total"
        ]
    assert set(series) == {"w-2"}
