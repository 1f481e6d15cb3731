"""Runs of a fleet that too many ask, or that everybody leaves: a small tenant beside a large one, storms of cancels."""

import asyncio
import random
import time
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import grpc
import httpx2
import psutil
import yaml
from bench.chaos.fleet import MODEL, ChaosFleet
from bench.chaos.runs import say
from bench.report import Row, compare
from bench.soaking.streams import Caller

from polyfleet.benchmark.work import percentile
from polyfleet.client import NO_RETRIES, AsyncClient
from polyfleet.v1 import worker_pb2, worker_pb2_grpc

SMALL, BIG = "small", "big"  # the tenants' keys are their names
TIMES = 20  # as many clients as the small tenant has
TENANT_TOKENS, TENANT_STEP_SECONDS = 16, 0.1  # of a request: few a second, so that they and no processor are short
TENANT_SLOTS = 8  # of a worker
LEAVE_AT_ONCE = 64  # streams
SAID_EVERY = 1_000  # streams
FIRST_SHARE = 0.2  # of a storm, behind which memory should not grow any more
POLL_SECONDS = 0.1
HELD_SECONDS = 60.0  # after which what is held is leaked
HELD = "held"  # unit of figures that must be 0


def tenants_file(folder: Path) -> str:
    """Keys of both, at equal weight."""
    keys = [{"id": each, "hash": sha256(each.encode()).hexdigest()} for each in (SMALL, BIG)]
    (folder / "keys.yaml").write_text(yaml.safe_dump({"keys": keys}))
    return str(folder / "keys.yaml")


async def tenants(folder: Path, *, workers: int, clients: int, seconds: float, rounds: int) -> list[Row]:
    """Whole requests of the small tenant, with the large one beside it and alone, in turns of so many seconds."""
    section = {"keys_file": tenants_file(folder)}
    slow, few = TENANT_STEP_SECONDS, TENANT_SLOTS
    async with ChaosFleet(workers, 1, section=section, api_key=SMALL, step_seconds=slow, max_sequences=few) as fleet:
        alone, beside, others = list[float](), list[float](), list[float]()
        for _ in range(rounds):
            await _ask(fleet, SMALL, clients, seconds, alone)
            crowd = asyncio.create_task(_ask(fleet, BIG, TIMES * clients, 1.5 * seconds, others))
            await asyncio.sleep(0.25 * seconds)
            await _ask(fleet, SMALL, clients, seconds, beside)
            await crowd
    rows = [
        compare(f"chaos_tenant_{name}", percentile(beside, share), "s", "alone", percentile(alone, share),
                lower_is_better=True)
        for name, share in (("p50", 0.5), ("p99", 0.99))
    ]  # fmt: skip
    return [*rows, Row("chaos_tenant_big_p99", percentile(others, 0.99), "s")]


async def _ask(fleet: ChaosFleet, key: str, clients: int, seconds: float, took: list[float]) -> None:
    """So many clients of a tenant, one request each at a time; adds what each request took.

    The large tenant's are of all lengths, as long as the small one's in the mean, so that they don't end together.
    """
    until = time.monotonic() + seconds

    async def client(number: int) -> None:
        count, rng = 0, random.Random(f"{key}/{number}")
        while time.monotonic() < until:
            began, count = time.monotonic(), count + 1
            tokens = TENANT_TOKENS if key == SMALL else rng.randint(1, 2 * TENANT_TOKENS)
            await asking.generate(f"{key} {number} {count}", model=MODEL, max_tokens=tokens, ignore_eos=True)
            took.append(time.monotonic() - began)

    async with AsyncClient(fleet.gateway_addresses[0][0], api_key=key, timeout=600, retry=NO_RETRIES) as asking:
        await asyncio.gather(*(client(number) for number in range(clients)))


async def cancels(storm: int, *, workers: int, seed: int) -> list[Row]:
    """So many streams, each left behind its first tokens or before; what is held of them afterwards."""
    async with ChaosFleet(workers, 1) as fleet:
        left, (caller,) = 0, fleet.callers
        first: dict[str, float] = {}

        async def client(number: int) -> None:
            nonlocal left, first
            rng = random.Random(f"{seed}/{number}")
            while left < storm:
                left += 1
                if left % SAID_EVERY == 0:
                    say(f"{left:,} of {storm:,} streams left")
                await _leave(caller, f"cancel {number} {left}", rng.randrange(4))
                if not first and left >= FIRST_SHARE * storm:
                    first = memory(fleet)

        await asyncio.gather(*(client(number) for number in range(LEAVE_AT_ONCE)))
        held = await _held(fleet)
        until = time.monotonic() + HELD_SECONDS
        while any(held.values()) and time.monotonic() < until:
            await asyncio.sleep(POLL_SECONDS)
            held = await _held(fleet)
        fleet.keep_folder = any(held.values())
        last = memory(fleet)
    rows = [Row("chaos_cancels", left, "streams"), *(Row(f"chaos_cancels_{name}", held[name], HELD) for name in held)]
    return rows + [
        compare(f"chaos_cancels_rss_{role}", last[role], "MB", "after a fifth", first[role], lower_is_better=True)
        for role in last
    ]


async def _leave(caller: Caller, prompt: str, deltas: int) -> None:
    """Ask, and leave behind so many deltas; 0: before any."""
    stream = caller.client.stream(prompt, model=MODEL, max_tokens=500, ignore_eos=True)
    async with stream:
        if not deltas:
            waiting = asyncio.ensure_future(anext(aiter(stream)))
            await asyncio.sleep(0.001)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            return
        seen = 0
        async for _ in stream:
            seen += 1
            if seen >= deltas:
                return


async def _held(fleet: ChaosFleet) -> dict[str, float]:
    """What gateway and workers hold for somebody: all 0 once nobody is there."""
    held = {"gateway_requests": 0.0, "worker_sequences": 0.0, "blocks": 0.0, "ledger": 0.0}
    async with httpx2.AsyncClient(trust_env=False) as http:
        text = (await http.get(f"http://{fleet.gateway_addresses[0][2]}/metrics")).text
    held["gateway_requests"] = metric_sum(text, ("polyfleet_requests_inflight{", "polyfleet_requests_queued{"))
    for address in fleet.worker_addresses:
        async with grpc.aio.insecure_channel(address) as channel:
            answer = await worker_pb2_grpc.WorkerStub(channel).Status(worker_pb2.StatusRequest())
        status, counts = answer.status, answer.status.counters
        held["worker_sequences"] += status.running_sequences + status.waiting_sequences
        held["blocks"] += answer.info.model.num_blocks - status.free_blocks
        held["ledger"] += counts.admitted - counts.finished - counts.failed - counts.cancelled
    return held


def metric_sum(text: str, names: Sequence[str]) -> float:
    """The values of a scrape's samples that begin so."""
    lines = [line for line in text.splitlines() if line.startswith(tuple(names))]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def memory(fleet: ChaosFleet) -> dict[str, float]:
    """Resident megabytes by role."""
    sums = {"gateway": 0.0, "worker": 0.0, "engine": 0.0}
    processes = [("gateway", each.process) for each in fleet.gateways]
    processes += [("worker", each.process) for each in fleet.workers] + [("engine", w.engine) for w in fleet.workers]
    for role, process in processes:
        sums[role] += psutil.Process(process.pid).memory_info().rss / 1e6
    return sums
