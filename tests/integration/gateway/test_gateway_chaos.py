"""Many random requests with random cancels and worker deaths: every stream right, every account balanced."""

import asyncio
import random
from collections import Counter
from typing import Any

import grpc
from tests.support.fake_worker import FakeWorker, fake_tokens
from tests.support.gateway_rig import VOCABULARY, GatewayRig, Stream, text_worker, until

from polyfleet.v1 import inference_pb2 as pb

REQUESTS = 500
ENDINGS = {
    grpc.StatusCode.DATA_LOSS,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.ABORTED,  # it lost more workers than it may
}


async def one(rig: GatewayRig, rng: random.Random) -> str:
    """One random request, perhaps cancelled half-way; how it ended. Checks every token that came."""
    prompt = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 40))]
    n, count = rng.choice([1, 1, 1, 2, 4]), rng.randint(1, 60)
    call = rig.stub.Generate(
        pb.GenerateRequest(token_ids=prompt, max_tokens=count, n=n, priority=rng.randint(-1, 1), ignore_eos=True)
    )
    leave_after = rng.randint(0, 20) if rng.random() < 0.3 else None
    messages: list[pb.GenerateResponse] = []
    ending = "finished"
    try:
        async for message in call:
            messages.append(message)
            if leave_after is not None and len(messages) > leave_after:
                call.cancel()
    except asyncio.CancelledError:
        ending = "left"
    except grpc.aio.AioRpcError as error:
        ending = "failed" if error.code() in ENDINGS else str(error)
    stream = Stream(messages)
    for choice in range(n):
        ids, whole = stream.ids(choice), fake_tokens(prompt, count, choice, VOCABULARY)
        assert ids == whole[: len(ids)]
        assert ids == whole or ending != "finished"
    return ending


async def harass(workers: list[FakeWorker], rng: random.Random, kinds: Counter[str]) -> None:
    """Break sessions and refuse starts, a worker at a time, for ever."""
    while True:
        await asyncio.sleep(rng.uniform(0.05, 0.2))
        worker = rng.choice(workers)
        kind = rng.choice(["drop", "drop_after", "refuse"])
        kinds[kind] += 1
        if kind == "drop":
            worker.drop_sessions()
        elif kind == "drop_after":
            worker.drop_after(rng.randint(1, 200))
        else:
            worker.refusal = (grpc.StatusCode.UNAVAILABLE.value[0], "not now")
            await asyncio.sleep(0.05)
            worker.refusal = None


async def test_the_ledger_balances_after_random_requests_cancels_and_deaths() -> None:
    rng = random.Random(20)
    workers = [text_worker(f"w-{i}", token_seconds=0.001 * i) for i in range(1, 4)]
    kinds: Counter[str] = Counter()
    async with GatewayRig(max_concurrent=48, max_queued=64, max_pending_tokens=32) as rig:
        await rig.add(*workers)
        harassing = asyncio.create_task(harass(workers, rng, kinds))
        gate = asyncio.Semaphore(80)

        async def client() -> str:
            async with gate:
                return await one(rig, rng)

        endings = Counter(await asyncio.gather(*(client() for _ in range(REQUESTS))))
        harassing.cancel()
        ledger = rig.gateway.ledger
        await until(lambda: ledger.running == 0)
        ledger.check()
        assert ledger.admitted == REQUESTS
        assert set(endings) <= {"finished", "left", "failed"}
        assert endings["finished"] > REQUESTS / 3
        assert ledger.finished >= endings["finished"]  # a client may leave when all has been sent
        assert all(kinds[kind] for kind in ("drop", "drop_after", "refuse"))
        assert moved(rig) > 0
        await until(lambda: not any(worker.sequences for worker in workers))
        nothing_is_left(rig)
        await after(rig)


def moved(rig: GatewayRig) -> float:
    value = rig.gateway.metrics.registry.get_sample_value
    return value("polyfleet_migrations_total", {"result": "resumed"}) or 0


def nothing_is_left(rig: GatewayRig) -> None:
    """No sequence, place or turn is held by a request that has ended."""
    assert all(session.num_sequences == 0 for session in rig.gateway.view.sessions.values())
    value: Any = rig.gateway.metrics.registry.get_sample_value
    for name in ("polyfleet_requests_queued", "polyfleet_requests_inflight"):
        assert value(name, {"model": "fake"}) == 0


async def after(rig: GatewayRig) -> None:
    """It serves on as if nothing had been: as many requests as may run at once."""
    await until(lambda: rig.gateway.view.num_ready() == 3)
    request = pb.GenerateRequest(token_ids=[1], max_tokens=3)
    streams = await asyncio.gather(*(Stream.read(rig.stub.Generate(request)) for _ in range(60)))
    assert all(stream.ids() == fake_tokens([1], 3, 0, VOCABULARY) for stream in streams)
