"""Closed and open loops over one target, rounds over several, pairs for a difference. Bounded in count and time."""

import asyncio
import itertools
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from polyfleet.benchmark.target import Target
from polyfleet.benchmark.work import Job, Outcome


@dataclass(slots=True)
class Result:
    """All that was measured of one target; `seconds` is the time that its rounds took."""

    target: Target
    outcomes: list[Outcome] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def good(self) -> list[Outcome]:
        """Outcomes without an error."""
        return [outcome for outcome in self.outcomes if not outcome.error]

    @property
    def errors(self) -> list[str]:
        """What went wrong, one entry a request."""
        return [outcome.error for outcome in self.outcomes if outcome.error]


@dataclass(frozen=True, slots=True)
class Plan:
    """`concurrency` clients in a closed loop, or with `rate` (requests a second) Poisson arrivals instead.

    `requests` and `seconds` bound what is started for each target, all rounds together; what runs then is waited for.
    """

    requests: int = 32
    seconds: float = 60.0
    concurrency: int = 1
    rate: float = 0.0
    warmup: int = 1
    rounds: int = 4
    seed: int = 0


async def warm_up(target: Target, jobs: Iterator[Job], plan: Plan) -> None:
    """Requests that are not measured."""
    until = time.monotonic() + plan.seconds
    await _closed_loop(target, itertools.islice(jobs, plan.warmup), plan.concurrency, until)


async def run_rounds(targets: Sequence[Target], jobs: Iterator[Job], plan: Plan) -> list[Result]:
    """Measure the targets in turn, round by round, so that drift hits all alike."""
    results = [Result(target) for target in targets]
    rng = random.Random(plan.seed)
    sizes = [len(range(index, plan.requests, plan.rounds)) for index in range(plan.rounds)]
    for size in sizes:
        for result in results:
            begin = time.monotonic()
            until = begin + plan.seconds / plan.rounds
            batch = itertools.islice(jobs, size)
            if plan.rate:
                result.outcomes += await _open_loop(result.target, batch, plan.rate, rng, until)
            else:
                result.outcomes += await _closed_loop(result.target, batch, plan.concurrency, until)
            result.seconds += time.monotonic() - begin
    return results


async def run_pairs(targets: Sequence[Target], jobs: Sequence[Job], plan: Plan) -> list[Result]:
    """The same request (`jobs` has it in each target's form) at each target in turn, alternating who comes first.

    Warm up with it, and the worker has the prompt in its prefix cache for all targets alike.
    """
    pairs = [(Result(target), job) for target, job in zip(targets, jobs, strict=True)]
    until = time.monotonic() + plan.seconds
    for number in range(plan.requests):
        for result, job in pairs if number % 2 else pairs[::-1]:
            begin = time.monotonic()
            result.outcomes.append(await result.target.run(job, begin))
            result.seconds += time.monotonic() - begin
        if time.monotonic() >= until:
            break
    return [result for result, _ in pairs]


async def _closed_loop(target: Target, jobs: Iterator[Job], concurrency: int, until: float) -> list[Outcome]:
    """`concurrency` clients, each sending its next job when the last one has been answered."""
    outcomes: list[Outcome] = []

    async def client() -> None:
        for job in jobs:
            outcomes.append(await target.run(job, time.monotonic()))
            if time.monotonic() >= until:
                return

    await asyncio.gather(*(client() for _ in range(concurrency)))
    return outcomes


async def _open_loop(
    target: Target, jobs: Iterator[Job], rate: float, rng: random.Random, until: float
) -> list[Outcome]:
    """Arrivals as a Poisson process of `rate` a second, whether or not earlier ones have been answered."""
    running: list[asyncio.Task[Outcome]] = []
    due = time.monotonic()
    for job in jobs:
        due += rng.expovariate(rate)
        if due >= until:
            break
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        running.append(asyncio.create_task(target.run(job, due)))
    return list(await asyncio.gather(*running))
