"""Queues, deadlines, cancellation, slow clients: every bound holds and says so."""

import asyncio
from typing import Any

import grpc
from tests.support.fake_worker import FakeWorker, fake_tokens
from tests.support.gateway_rig import VOCABULARY, GatewayRig, Stream, failure_of, text_worker, until

from polyfleet.v1 import fleet_pb2
from polyfleet.v1 import inference_pb2 as pb

REQUEST = pb.GenerateRequest(token_ids=[4, 5], max_tokens=20)
LONG = pb.GenerateRequest(token_ids=[4, 5], max_tokens=2000)


def crawling(worker_id: str = "w-1", **options: Any) -> FakeWorker:
    return text_worker(worker_id, token_seconds=0.02, **options)


async def test_a_client_that_leaves_frees_its_sequences_at_once() -> None:
    worker = crawling()
    async with GatewayRig() as rig:
        await rig.add(worker)
        call = rig.stub.Generate(pb.GenerateRequest(token_ids=[4], max_tokens=2000, n=4))
        await call.read()
        step = worker.status().step
        call.cancel()
        await until(lambda: not worker.sequences)
        assert worker.status().step - step <= 3  # steps of 20 ms; the cancellation itself takes far less
        assert len(worker.cancelled) == 4
        ledger = rig.gateway.ledger
        await until(lambda: ledger.running == 0)
        assert (ledger.admitted, ledger.cancelled) == (1, 1)
        cancelled = rig.gateway.metrics.registry.get_sample_value("polyfleet_cancellations_total", {"model": "fake"})
        assert cancelled == 1


async def test_a_client_that_leaves_while_queued_leaves_the_queue() -> None:
    async with GatewayRig(max_queued=1) as rig:
        worker = crawling()
        await rig.add(worker)
        await worker.kill()
        await until(lambda: rig.gateway.view.num_ready() == 0)
        for _ in range(3):  # each takes the only place in the queue and gives it back
            call = rig.stub.Generate(LONG)
            queued = rig.gateway.metrics.of("fake").queued
            await until(lambda queued=queued: queued._value.get() == 1)  # type: ignore[misc]
            call.cancel()
            await until(lambda queued=queued: queued._value.get() == 0)  # type: ignore[misc]
        rig.gateway.ledger.check()
        assert rig.gateway.ledger.cancelled == 3


async def test_no_ready_worker_is_unavailable_with_a_retry_hint_and_the_reasons() -> None:
    async with GatewayRig(queue_timeout=0.2) as rig:
        worker = crawling()
        await rig.add(worker)
        worker.set_state(fleet_pb2.WORKER_STATE_UNHEALTHY)
        await until(lambda: rig.gateway.view.num_ready() == 0)
        failure = await failure_of(rig.stub.Generate(REQUEST))
        assert failure.code is grpc.StatusCode.UNAVAILABLE
        assert failure.retry_seconds
        assert "w-1: unhealthy" in failure.message
        worker.set_state(fleet_pb2.WORKER_STATE_READY)
        await until(lambda: rig.gateway.view.num_ready() == 1)
        assert (await Stream.read(rig.stub.Generate(REQUEST))).ids() == fake_tokens([4, 5], 20, 0, VOCABULARY)


async def test_a_request_sent_while_no_worker_is_ready_waits_for_one() -> None:
    async with GatewayRig() as rig:
        gone = crawling("w-1")
        await rig.add(gone)
        await gone.kill()
        await until(lambda: rig.gateway.view.num_ready() == 0)
        reading = asyncio.create_task(Stream.read(rig.stub.Generate(REQUEST)))
        await until(lambda: rig.gateway.ledger.running == 1)
        await rig.add(text_worker("w-2"))
        assert (await reading).workers() == ["w-2"]


async def test_a_fleet_that_was_never_heard_of_is_unavailable() -> None:
    async with GatewayRig(queue_timeout=0.2) as rig:
        rig.gateway.view.known = False
        failure = await failure_of(rig.stub.Generate(REQUEST))
    assert failure.code is grpc.StatusCode.UNAVAILABLE
    assert "not heard of the fleet" in failure.message


async def test_a_full_queue_is_resource_exhausted_with_a_retry_hint() -> None:
    worker = crawling()
    async with GatewayRig(max_concurrent=2, max_queued=3) as rig:
        await rig.add(worker)
        await Stream.read(rig.stub.Generate(REQUEST))  # the model is known from here on: until then all wait
        worker.started.clear()
        running: list[Any] = []
        for _ in range(5):  # one by one, so that the first two are those that run
            running.append(rig.stub.Generate(LONG))
            await until(lambda: rig.gateway.ledger.running == len(running))
        failure = await failure_of(rig.stub.Generate(LONG))
        assert failure.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert failure.retry_seconds
        assert failure.quotas == ["max_queued"]
        assert len(worker.started) == 2
        running[0].cancel()  # one turn comes free, one of the queue takes it, so one place comes free
        await until(lambda: len(worker.started) == 3)
        last = rig.stub.Generate(REQUEST)
        for call in running:
            call.cancel()
        assert len((await Stream.read(last)).ids()) == 20


async def test_higher_priority_goes_first_when_requests_queue() -> None:
    worker = crawling()
    async with GatewayRig(max_concurrent=1) as rig:
        await rig.add(worker)
        first = rig.stub.Generate(LONG)
        await first.read()
        calls = []
        for priority in (0, -5, 10, 5):
            calls.append(rig.stub.Generate(pb.GenerateRequest(token_ids=[1], max_tokens=1, priority=priority)))
            await until(lambda: rig.gateway.ledger.running == len(calls) + 1)
        first.cancel()
        await asyncio.gather(*map(Stream.read, calls))
    assert [start.priority for start in worker.started[1:]] == [10, 5, 0, -5]


async def test_a_deadline_ends_the_request_and_frees_the_worker() -> None:
    worker = crawling()
    async with GatewayRig() as rig:
        await rig.add(worker)
        failure = await failure_of(rig.stub.Generate(LONG, timeout=1.0))
        assert failure.code is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: not worker.sequences)
        ledger = rig.gateway.ledger
        await until(lambda: ledger.running == 0)
        # Both ends know the deadline: the client's leaving may reach the gateway just before its own clock does.
        assert (ledger.admitted, ledger.finished, ledger.failed + ledger.cancelled) == (1, 0, 1)


async def test_the_gateways_own_time_limit_ends_a_request() -> None:
    worker = crawling()
    async with GatewayRig(max_request_seconds=0.3) as rig:
        await rig.add(worker)
        failure = await failure_of(rig.stub.Generate(LONG))
        assert failure.code is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: not worker.sequences)


async def test_a_slow_client_is_parked_and_slows_nobody_else() -> None:
    worker = text_worker("w-1", context_length=60_000, token_seconds=0.0005)
    request = pb.GenerateRequest(token_ids=[4, 5], max_tokens=16_000, logprobs=20)
    async with GatewayRig(max_pending_tokens=64) as rig:
        await rig.add(worker)
        async with rig.channel(("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024)) as channel:
            call = type(rig.stub)(channel).Generate(request)
            first = await call.read()
            await until(lambda: bool(worker.cancelled) and not worker.sequences)  # parked: the client reads no more
            other = await Stream.read(rig.stub.Generate(REQUEST))
            assert other.ids() == fake_tokens([4, 5], 20, 0, VOCABULARY)
            ids = list(first.token_ids)
            for _ in range(300):  # the client wakes up: the stream goes on where it was, over several parkings
                ids += (await call.read()).token_ids
            assert ids == fake_tokens([4, 5], len(ids), 0, VOCABULARY)
            assert len({start.sequence_id for start in worker.started}) == len(worker.started) > 2
            call.cancel()
        await until(lambda: not worker.sequences)
        assert (
            rig.gateway.metrics.registry.get_sample_value("polyfleet_migrations_total", {"result": "resumed"}) is None
        )
