"""Faults in a stack as `polyfleet serve` starts it: real engines, and every part of Ray."""

import asyncio
import random
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

import psutil
from bench.chaos.runs import HOLD_SECONDS, pause_rows, say, told
from bench.report import Row
from bench.soak import answers_alone
from bench.soaking.cases import make_cases
from bench.soaking.stack import OwnStack, StackError
from bench.soaking.streams import Caller, Soak, Tally

PARTS: Mapping[str, str] = {  # what their command lines have
    "worker": r"-m polyfleet\.serving(?!\.)",
    "engine": r"-m polyfleet\.serving\.engine_process",
    "launcher": r"^ray::Launcher",
    "actor": r"^ray::SchedulerActor",
    "scheduler": r"-m polyfleet\.scheduler(?!\.)",
    "raylet": r"/raylet( |$)",
    "gcs": r"/gcs_server( |$)",
}
BY_WORKER = ("worker", "engine", "launcher")
ENDED_BY_OTHERS = ("raylet", "gcs")  # when they hang, within a minute
FAULTS = tuple(f"{how}-{part}" for how in ("kill", "stop") for part in PARTS)
CASES, TOKENS = 8, 96
PATIENCE_SECONDS = 700.0  # `polyfleet serve` itself tries for ten minutes to have Ray again
POLL_SECONDS = 0.2


async def stack_storm(
    stack: OwnStack, names: Sequence[str], *, rounds: int, workers: int, clients: int, seed: int
) -> tuple[Tally, list[Row]]:
    """`rounds` times all of these faults, in an order drawn by the seed, one after another.

    What streams get is compared with what they got alone. Raises StackError where something does not come back.
    """
    rng = random.Random(seed)
    async with Caller(stack.grpc, stack.http) as caller:
        run = Soak([caller], await answers_alone(caller, make_cases(CASES, TOKENS, seed)), 0.1, seed)
        by_fault = {name: list[float]() for name in names}
        await _whole(stack, caller, workers)
        asking = asyncio.ensure_future(run.run(clients, 86_400))
        try:
            for name in [each for _ in range(rounds) for each in rng.sample(names, len(names))]:
                before = len(run.tally.pauses)
                say(f"{name} …")
                await _strike(stack, name, rng)
                await _whole(stack, caller, workers)
                by_fault[name] += run.tally.pauses[before:]
                say(f"{name}: {told(run.tally)}")
        finally:
            run.end()
            await asking
    return run.tally, [Row("chaos_stack_faults", rounds * len(names), "faults"), *pause_rows(by_fault)]


async def _strike(stack: OwnStack, name: str, rng: random.Random) -> None:
    how, _, part = name.partition("-")
    victims = stack.find(PARTS[part])
    if not victims:
        raise StackError(f"There is no {part} to {how}.")
    victim = rng.choice(victims)
    with suppress(psutil.NoSuchProcess):
        if how == "kill":
            victim.kill()
            return
        victim.send_signal(signal.SIGSTOP)
        until = time.monotonic() + (PATIENCE_SECONDS if part in ENDED_BY_OTHERS else HOLD_SECONDS)
        while victim.is_running() and time.monotonic() < until:
            await asyncio.sleep(POLL_SECONDS)
        victim.send_signal(signal.SIGCONT)


async def _whole(stack: OwnStack, caller: Caller, workers: int) -> None:
    """Every part is there, and every worker ready. Raises StackError when the stack has ended, or is not so in time."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while stack.runs:
        counts = {part: len(stack.find(pattern)) for part, pattern in PARTS.items()}
        missing = [part for part, count in counts.items() if count < (workers if part in BY_WORKER else 1)]
        if not missing and await caller.ready_workers() >= workers:
            return
        if time.monotonic() > deadline:
            raise StackError(f"Not whole again: {', '.join(missing) or 'no worker'} is missing. {stack.said()}")
        await asyncio.sleep(POLL_SECONDS)
    raise StackError(f"The stack has ended. {stack.said()}")
