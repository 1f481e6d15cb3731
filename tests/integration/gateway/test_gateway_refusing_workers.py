"""Workers that refuse: a sequence goes elsewhere, its client hears what nobody else can do better."""

import asyncio

import grpc
import pytest
from tests.support.fake_worker import fake_tokens
from tests.support.gateway_rig import (
    VOCABULARY,
    GatewayRig,
    Stream,
    failure_of,
    text_worker,
)

from polyfleet.gateway.fleet.breaker import FAILURES
from polyfleet.v1 import inference_pb2 as pb

PROMPT = [4, 5]


SHORT = pb.GenerateRequest(token_ids=PROMPT, max_tokens=3)


REQUEST = pb.GenerateRequest(token_ids=PROMPT, max_tokens=200)


def expected(count: int, choice: int = 0) -> list[int]:
    return fake_tokens(PROMPT, count, choice, VOCABULARY)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (grpc.StatusCode.UNAVAILABLE, "The worker is draining."),
        (grpc.StatusCode.FAILED_PRECONDITION, "The worker has no model."),  # it has just unloaded it
    ],
)
async def test_a_refusal_sends_the_sequence_elsewhere(code: grpc.StatusCode, message: str) -> None:
    first, second = text_worker("w-1"), text_worker("w-2")
    first.refusal = (code.value[0], message)
    async with GatewayRig() as rig:
        await rig.add(first, second)
        streams = [await Stream.read(rig.stub.Generate(SHORT)) for _ in range(8)]
    assert all(stream.ids() == expected(3) for stream in streams)
    assert all(stream.workers() == ["w-2"] for stream in streams)


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "one by one"])
async def test_workers_that_refuse_cost_no_request(at_once: bool) -> None:
    """Four of five refuse whatever they get: who asks gets an answer, and soon they are asked no more."""
    bad, good = [text_worker(f"w-{index}") for index in range(4)], text_worker("w-good")
    for worker in bad:
        worker.refusal = (grpc.StatusCode.UNAVAILABLE.value[0], "no")
    async with GatewayRig() as rig:
        await rig.add(*bad, good)
        if at_once:
            streams = list(await asyncio.gather(*(Stream.read(rig.stub.Generate(SHORT)) for _ in range(40))))
        else:
            streams = [await Stream.read(rig.stub.Generate(SHORT)) for _ in range(40)]
        value = rig.gateway.metrics.registry.get_sample_value
        circuits = [value("polyfleet_circuit_open", {"worker_id": each.worker_id}) for each in (*bad, good)]
        failures = [value("polyfleet_worker_failures_total", {"worker_id": each.worker_id}) for each in (*bad, good)]
    assert all(stream.ids() == expected(3) for stream in streams)
    assert all(stream.workers() == ["w-good"] for stream in streams)
    assert failures == [len(each.started) for each in bad] + [0]
    if not at_once:
        assert circuits == [1, 1, 1, 1, 0]
        assert max(len(each.started) for each in bad) < 20  # the first ones, and some trials


async def test_a_spared_worker_that_is_well_again_is_found_out() -> None:
    worker = text_worker("w-1")
    worker.refusal = (grpc.StatusCode.UNAVAILABLE.value[0], "no")
    async with GatewayRig(max_moves=FAILURES - 1, queue_timeout=20) as rig:
        await rig.add(worker)
        assert (await failure_of(rig.stub.Generate(SHORT))).code is grpc.StatusCode.UNAVAILABLE
        (facts,) = rig.gateway.view.snapshot().workers
        assert facts.circuit_open
        worker.refusal = None
        assert (await Stream.read(rig.stub.Generate(SHORT))).ids() == expected(3)
        value = rig.gateway.metrics.registry.get_sample_value
        assert value("polyfleet_circuit_open", {"worker_id": "w-1"}) == 0


async def test_a_model_that_its_only_worker_unloads_is_unavailable_and_no_fault_of_the_request() -> None:
    worker = text_worker("w-1")
    worker.refusal = (grpc.StatusCode.FAILED_PRECONDITION.value[0], "The worker has no model.")
    async with GatewayRig(max_moves=1, queue_timeout=20) as rig:
        await rig.add(worker)
        failure = await failure_of(rig.stub.Generate(SHORT))
    assert failure.code is grpc.StatusCode.UNAVAILABLE


async def test_a_wrong_request_is_no_failure_of_its_worker() -> None:
    worker = text_worker("w-1")
    worker.refusal = (grpc.StatusCode.INVALID_ARGUMENT.value[0], "prompt_ids: too long for me")
    async with GatewayRig() as rig:
        await rig.add(worker)
        for _ in range(FAILURES + 1):
            await failure_of(rig.stub.Generate(REQUEST))
        assert not rig.gateway.view.snapshot().workers[0].circuit_open


async def test_a_refusal_of_the_request_itself_goes_to_the_client() -> None:
    worker = text_worker("w-1")
    worker.refusal = (grpc.StatusCode.INVALID_ARGUMENT.value[0], "prompt_ids: too long for me")
    async with GatewayRig() as rig:
        await rig.add(worker)
        failure = await failure_of(rig.stub.Generate(REQUEST))
        worker.refusal = (worker.refusal[0], "the grammar names no token")
        structure = pb.Structure(grammar="start: <[9999]>")
        other = await failure_of(rig.stub.Generate(pb.GenerateRequest(token_ids=PROMPT, structure=structure)))
    assert (failure.code, failure.message) == (grpc.StatusCode.INVALID_ARGUMENT, "prompt_ids: too long for me")
    assert other.fields == {"structure": "the grammar names no token"}
    assert len(worker.started) == 2


async def test_a_full_worker_everywhere_is_resource_exhausted() -> None:
    worker = text_worker("w-1")
    worker.refusal = (grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], "full")
    async with GatewayRig(max_moves=1) as rig:
        await rig.add(worker)
        failure = await failure_of(rig.stub.Generate(REQUEST))
    assert failure.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert failure.retry_seconds
    assert len(worker.started) == 2
