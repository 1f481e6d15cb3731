"""Runs of a fleet under faults, and their figures. Streams are checked token by token all along."""

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack

from bench.chaos.faults import FAULTS
from bench.chaos.fleet import ChaosFleet
from bench.report import Row
from bench.soaking.cases import Answer, Case
from bench.soaking.streams import Soak, Tally

from polyfleet.benchmark.work import percentile
from polyfleet.simulator.tokens import answer

HANGS = (
    *("stop-worker", "stop-engine", "silent-worker", "deaf-worker", "mute-worker", "half-open-worker"),
    *("stop-scheduler", "silent-scheduler", "half-open-scheduler"),
)
KILLS = ("kill-worker", "kill-engine")
HOLD_SECONDS = 6.0  # more than it takes to notice a hang
POLL_SECONDS = 0.05
SHORT = 0.1  # of the longest request: the longest of the short ones
Disturb = Callable[[Soak], Awaitable[list[Row]]]


def simulated_cases(count: int, tokens: int, seed: int, *, short: int = 0) -> dict[Case, Answer]:
    """Requests of 1 to `tokens` tokens, with the answers that simulated workers owe them; each `short`th is short."""
    rng = random.Random(seed)
    right = {}
    for number in range(count):
        length = rng.randint(1, max(1, int(SHORT * tokens)) if short and number % short == 0 else tokens)
        case = Case(f"{number}", f"chaos {rng.getrandbits(32)}", length, None)
        ids = answer(list(case.prompt.encode()), case.max_tokens)
        right[case] = Answer(tuple(ids), bytes(ids).decode())
    return right


async def disturbed(
    fleet: ChaosFleet, disturb: Disturb, *, clients: int, tokens: int, seed: int, short: int = 0
) -> tuple[Tally, list[Row]]:
    """Streams to all gateways for as long as `disturb` goes on; what became of them, and what it measured itself."""
    run = Soak(fleet.callers, simulated_cases(200, tokens, seed, short=short), 0.1, seed)
    asking = asyncio.ensure_future(run.run(clients, 86_400))
    try:
        await more(run, 4)
        rows = await disturb(run)
    finally:
        run.end()
        await asking
    return run.tally, rows


async def more(run: Soak, count: int) -> None:
    """So many more streams have come to their end."""
    until = run.tally.finished.total() + count
    while run.tally.finished.total() < until:
        await asyncio.sleep(POLL_SECONDS)


async def strike(fleet: ChaosFleet, names: Sequence[str], rng: random.Random, hold: Awaitable[None]) -> None:
    """These faults together, for as long as `hold` takes; then all is mended."""
    async with AsyncExitStack() as faults:
        for name in names:
            await faults.enter_async_context(FAULTS[name](fleet, rng))
        await hold
    await fleet.whole()


def storm(fleet: ChaosFleet, names: Sequence[str], rounds: int, seed: int, together: int = 1) -> Disturb:
    """`rounds` times all of the faults, in an order drawn by the seed, so many `together`."""
    rng = random.Random(seed)

    async def disturb(run: Soak) -> list[Row]:
        for _ in range(rounds):
            drawn = rng.sample(names, len(names))
            for at in range(0, len(drawn), together):
                await strike(fleet, drawn[at : at + together], rng, asyncio.sleep(HOLD_SECONDS))
                say(f"{' and '.join(drawn[at : at + together])}: {told(run.tally)}")
        return [Row("chaos_storm_faults", rounds * len(names), "faults")]

    return disturb


def paused(fleet: ChaosFleet, names: Sequence[str], pauses: int, seed: int) -> Disturb:
    """These faults in turn, each at least once, until so many streams have moved or were held up."""
    rng = random.Random(seed)

    async def disturb(run: Soak) -> list[Row]:
        at, by_fault = 0, {name: list[float]() for name in names}
        while at < len(names) or len(run.tally.pauses) < pauses:
            name, before = names[at % len(names)], len(run.tally.pauses)
            await strike(fleet, [name], rng, asyncio.sleep(HOLD_SECONDS))
            by_fault[name] += run.tally.pauses[before:]
            say(f"{name}: {told(run.tally)}, longest pause {max(run.tally.pauses, default=0):.2f} s")
            at += 1
        return pause_rows(by_fault)

    return disturb


def rolling(fleet: ChaosFleet, requests: int) -> Disturb:
    """Restarts of every process in turn, in good order, round by round until so many streams have finished."""

    async def disturb(run: Soak) -> list[Row]:
        restarts = Counter[str]()
        while run.tally.finished.total() < requests:
            for part in (*fleet.workers, fleet.scheduler, *fleet.gateways):
                await asyncio.to_thread(part.end)
                part.start()
                await fleet.whole()
                restarts[part.name.partition("-")[0]] += 1
                say(f"restarted {dict(restarts)}, of {requests:,} streams {told(run.tally)}")
        return [Row(f"chaos_rolling_restarts_{role}", count, "restarts") for role, count in restarts.items()]

    return disturb


def told(tally: Tally) -> str:
    """How it stands, in words."""
    wrong, lost = len(tally.wrong), len(tally.lost)
    return f"{tally.finished.total()} finished, {tally.moved} moves, {wrong} wrong, {lost} lost, {dict(tally.statuses)}"


def tally_rows(name: str, tally: Tally) -> list[Row]:
    """What became of the streams of one run."""
    rows = [
        Row(f"chaos_{name}_finished", tally.finished.total(), "streams"),
        Row(f"chaos_{name}_moves", tally.moved, "moves"),
        Row(f"chaos_{name}_refused", tally.statuses.total() - len(tally.lost) - tally.told, "streams"),
        Row(f"chaos_{name}_told", tally.told, "streams"),
        Row(f"chaos_{name}_wrong", len(tally.wrong), "streams"),
        Row(f"chaos_{name}_lost", len(tally.lost), "streams"),
    ]
    if tally.pauses:
        rows.append(Row(f"chaos_{name}_pause_p99", percentile(tally.pauses, 0.99), "s"))
    return rows


def pause_rows(by_fault: Mapping[str, Sequence[float]]) -> list[Row]:
    """How many streams each fault moved or held up, and for how long."""
    return [
        row
        for name, found in by_fault.items()
        for row in (
            Row(f"chaos_{name}_paused", len(found), "streams"),
            Row(f"chaos_{name}_pause_p99", percentile(found, 0.99) if found else 0.0, "s"),
        )
    ]


def say(text: str) -> None:
    """A line of progress."""
    print(text, file=sys.stderr, flush=True)
