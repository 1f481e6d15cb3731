"""The simulator beside real workers: the same short trace, through a gateway and simulated with the rates learned.

    python -m bench.simulated                                                 # two CPU workers of its own stack
    python -m bench.simulated --gateway 127.0.0.1:50051 --fleet 127.0.0.1:50052   # a stack without other load

First a few requests let the workers learn their rates. Then the trace is replayed, and simulated on workers with those
rates. Rows have the simulator's figure, the real one as peer, and how they compare. Within 15 % is asked for.
"""

import asyncio
import random
import statistics
import time
from contextlib import ExitStack
from typing import NamedTuple

from bench.command import above_zero, parser_of, positive, run
from bench.report import Row, compare, publish
from bench.soaking.stack import OwnStack

from polyfleet.cli.fleet_client import open_fleet
from polyfleet.client import AsyncClient, PolyfleetError
from polyfleet.placement.policy import Policy
from polyfleet.simulator.engine import LEAST_PROMPT
from polyfleet.simulator.figures import first_seconds, token_seconds
from polyfleet.simulator.fleet_file import FleetFile, Group, Speed
from polyfleet.simulator.simulate import Options, Simulation
from polyfleet.simulator.trace import Arrival, Trace, draw_trace
from polyfleet.v1 import fleet_pb2 as pb

WARM_ROUNDS, PROMPT, OUTPUT, BATCH = 4, 128, 16, 4
STEP_TOKENS, MOST_STEP_SECONDS = 256, 0.25  # a CPU worker's own defaults
IDS = range(1000, 2000)  # of prompts: any that no model of ours ends with


class Served(NamedTuple):
    """What became of one request, in seconds."""

    first: float
    token: float
    all: float


async def served(client: AsyncClient, arrival: Arrival, draw: random.Random) -> Served:
    """One request, timed from here."""
    prompt = draw.choices(IDS, k=arrival.prompt_tokens)
    began, first = time.monotonic(), 0.0
    async with client.stream(
        token_ids=prompt, max_tokens=arrival.output_tokens, ignore_eos=True, temperature=0.0
    ) as stream:
        async for delta in stream:
            if delta.token_ids and not first:
                first = time.monotonic()
    end = time.monotonic()
    return Served(first - began, (end - first) / max(1, arrival.output_tokens - 1), end - began)


async def replay(gateway: str, trace: Trace, seed: int) -> list[Served]:
    """All of them, each at its time."""
    draw = random.Random(seed)

    async def one(arrival: Arrival) -> Served:
        await asyncio.sleep(arrival.seconds)
        return await served(client, arrival, draw)

    async with AsyncClient(gateway) as client:
        return list(await asyncio.gather(*map(one, trace.arrivals)))


def learned(fleet: str) -> FleetFile:
    """The workers as they report themselves."""
    with open_fleet(fleet, None) as client:
        workers = [each for each in client.snapshot().workers if each.status.state == pb.WORKER_STATE_READY]
    return FleetFile(groups=tuple(map(group, workers)))


def group(worker: pb.FleetWorker) -> Group:
    """One worker as the simulator has it."""
    model, status = worker.info.model, worker.status
    rate, base = status.prefill_tokens_per_second, status.decode_step_seconds
    rows = max(LEAST_PROMPT, min(PROMPT, rate * MOST_STEP_SECONDS))  # that a step of prompts had, about
    return Group(
        accelerator="cpu",
        name=worker.info.worker_id[-40:],
        steps=Speed(
            prefill_tokens_per_second=1 / max(1 / rate - base / rows, 0.1 / rate),  # the base comes on top
            step_seconds=base,
            sequence_seconds=status.decode_step_seconds_per_sequence,
            token_seconds=status.decode_step_seconds_per_token,
        ),
        max_sequences=model.max_sequences,
        kv_tokens=model.num_blocks * model.block_size,
        block_size=model.block_size,
        context_length=model.context_length,
        step_tokens=STEP_TOKENS,
        most_step_seconds=MOST_STEP_SECONDS,
        jitter=0.0,
    )


def best_rate(worker: Group) -> float:
    """Requests a second of the drawn trace that it can finish, whatever their latency."""
    step = worker.pace.step(BATCH, BATCH * (PROMPT + OUTPUT), 0)
    return 1 / (PROMPT / worker.pace.prefill_tokens_per_second + OUTPUT * step / BATCH)


def rows(simulated: list[Served], real: list[Served]) -> list[Row]:
    """One for each mean."""
    found = []
    for name in Served._fields:
        ours, theirs = (statistics.mean(getattr(each, name) for each in some) for some in (simulated, real))
        found.append(compare(f"simulated_{name}_seconds", ours, "s", "real", theirs))
    return found


def main(arguments: list[str] | None = None) -> int:
    """Replay, simulate, print."""
    parser = parser_of(__doc__)
    parser.add_argument("--gateway", default="", metavar="HOST:PORT", help="of a stack that runs already")
    parser.add_argument("--fleet", default="", metavar="HOST:PORT", help="its scheduler")
    parser.add_argument("--requests", type=positive, default=40, help="of the trace (default: 40)")
    parser.add_argument("--load", type=above_zero, default=0.5, help="share of the workers' capacity (default: 0.5)")
    options = parser.parse_args(arguments)
    trace = draw_trace(options.requests, 2, shared=False, prompt_tokens=PROMPT, output_tokens=OUTPUT)
    with ExitStack() as stack:
        gateway, fleet = options.gateway, options.fleet
        if not gateway:
            own = stack.enter_context(OwnStack(2))
            gateway, fleet = own.grpc, own.fleet
        for seed in range(WARM_ROUNDS):  # one after the other, then two at once and more
            warm = draw_trace(2 + 2 * seed, seed, shared=False, prompt_tokens=PROMPT, output_tokens=OUTPUT).at_rate(
                100.0
            )
            asyncio.run(replay(gateway, warm, seed))
        rate = sum(map(best_rate, learned(fleet).groups))
        trace = trace.at_rate(options.load * rate)
        real = asyncio.run(replay(gateway, trace, WARM_ROUNDS))
        wanted = learned(fleet)
    jobs = Simulation(wanted, trace, Policy(), Options()).run().jobs
    simulated = [Served(first_seconds(job), token_seconds(job), job.end - job.arrival.seconds) for job in jobs]
    publish(rows(simulated, real), options.json)
    return 0


if __name__ == "__main__":
    run(main, PolyfleetError)
