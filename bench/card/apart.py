"""Prefill and decode apart on two devices, measured: real workers behind a gateway, in turn with the same two together.

    python -m bench.card.apart                                    # cuda:0 and cuda:1, Llama-3-8B's shape
    python -m bench.card.apart --devices cpu --shape tiny --prompt 256 --output 32   # a try, on a CPU

Four workers with the same random weights, two on each device: the model `together` is served by one on each, `apart` by
one of role prefill on the first device and one of role decode on the second. What both of `together` can do is
measured with as many clients as they take; then a Poisson process of `--load` of that asks one of the two models and
the other in turn, with the same arrivals. Rows are apart, with together as peer. Needs no Ray.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import grpc
from bench.card.shapes import BLOCK_SIZE, SHAPES
from bench.chaos.parts import Part
from bench.command import parser_of
from bench.report import Row, compare, publish

from polyfleet.client import AsyncClient, PolyfleetError
from polyfleet.process.listening import free_addresses
from polyfleet.simulator.figures import percentile
from polyfleet.v1 import fleet_pb2, fleet_pb2_grpc

POLL_SECONDS = 0.2
COUNTED = 'polyfleet_prefills_total{decision="'
WORKERS = (("together", "both"), ("together", "both"), ("apart", "prefill"), ("apart", "decode"))


@dataclass(slots=True)
class Found:
    """What became of a trace, in seconds."""

    gaps: list[float] = field(default_factory=list)  # from token to token; of those that came together 0 but for one
    firsts: list[float] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0

    def figures(self) -> "Figures":
        """Of all of it."""
        gaps = percentile(self.gaps, 0.5), percentile(self.gaps, 0.99)
        firsts = percentile(self.firsts, 0.5), percentile(self.firsts, 0.99)
        return Figures(*gaps, *firsts, self.tokens / self.seconds)


class Figures(NamedTuple):
    """As bench.apart's, of the simulator."""

    gap_p50: float
    gap_p99: float
    first_p50: float
    first_p99: float
    tokens_per_second: float


class Load:
    """Requests of one model at a gateway, which know their times."""

    def __init__(self, client: AsyncClient, model: str, options: argparse.Namespace) -> None:
        self._client, self._model, self._options = client, model, options
        self._draw = random.Random(f"{model}/{time.monotonic_ns()}")  # prompts that nobody has cached
        self.came = 0  # tokens so far

    async def one(self, found: Found) -> None:
        """A whole one."""
        prompt = self._draw.choices(range(16, self._options.vocabulary - 16), k=self._options.prompt)
        last, count = time.monotonic(), 0
        stream = self._client.stream(
            model=self._model, token_ids=prompt, max_tokens=self._options.output, ignore_eos=True, temperature=0.0
        )
        async with stream:
            async for delta in stream:
                if not delta.token_ids:
                    continue
                now = time.monotonic()
                (found.gaps if count else found.firsts).append(now - last)
                found.gaps += [0.0] * (len(delta.token_ids) - 1)
                count, last = count + len(delta.token_ids), now
                self.came += len(delta.token_ids)
        found.tokens += count

    async def most(self, clients: int, seconds: float) -> float:
        """Requests a second that so many clients are given, once the first of each has been."""
        until = time.monotonic() + seconds

        async def client() -> None:
            while time.monotonic() < until:
                await self.one(Found())

        running = [asyncio.create_task(client()) for _ in range(clients)]
        await asyncio.sleep(seconds / 3)
        before, began = self.came, time.monotonic()
        await asyncio.sleep(max(0.0, until - began))
        rate: float = (self.came - before) / (time.monotonic() - began) / self._options.output
        await asyncio.gather(*running)
        return rate

    async def replay(self, rate: float, seconds: float, seed: int) -> Found:
        """A Poisson process."""
        draw, now, found, running = random.Random(seed), 0.0, Found(), list[asyncio.Task[None]]()
        began = time.monotonic()
        while (now := now + draw.expovariate(rate)) < seconds:
            await asyncio.sleep(max(0.0, began + now - time.monotonic()))
            running.append(asyncio.create_task(self.one(found)))
        await asyncio.gather(*running)
        found.seconds = time.monotonic() - began
        return found


def start(stack: ExitStack, folder: Path, options: argparse.Namespace) -> tuple[str, str, str, list[Part]]:
    """Scheduler, gateway and workers; where the first is, and the second takes requests and tells metrics."""
    fleet, metrics, requests, http, gateway_metrics = free_addresses(5)
    listen = {"grpc": requests, "http": http, "metrics": gateway_metrics}
    gateway = [f"--{name}-listen={address}" for name, address in listen.items()]
    parts = [
        Part("scheduler", "bench.chaos.scheduler", [fleet, metrics, str(folder / "state")], folder),
        Part("gateway", "polyfleet.gateway", [*gateway, f"--fleet={fleet}"], folder),
    ]
    context = -(-(options.prompt + options.output) // BLOCK_SIZE) * BLOCK_SIZE
    room = [
        f"--context-length={context}",
        f"--kv-cache-tokens={options.clients * context}",
        f"--max-sequences={options.clients}",
    ]
    for number, (name, role) in enumerate(WORKERS):
        device = options.devices[number % len(options.devices)]
        arguments = [f"--model={options.shape}", f"--model-name={name}", f"--role={role}", f"--fleet={fleet}"]
        arguments += [f"--device={device}", f"--accelerator={device.partition(':')[0]}", *room, *options.worker]
        parts.append(Part(f"worker-{number}-{role}", "bench.card.worker", arguments, folder))
    for part in parts:
        part.start()
        stack.callback(part.kill)
    return fleet, requests, gateway_metrics, parts


async def ready(client: AsyncClient, parts: Sequence[Part], seconds: float) -> None:
    """Until the gateway has all workers. Exits with what was said where one ends."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if sum(each.ready_workers for each in await client.models()) == len(WORKERS):
                return
        except PolyfleetError:
            pass
        if time.monotonic() > deadline or not all(each.runs for each in parts):
            raise SystemExit("\n".join(f"{each.name}, runs {each.runs}: {each.said()}" for each in parts))
        await asyncio.sleep(POLL_SECONDS)


async def measure(fleet: str, requests: str, parts: Sequence[Part], options: argparse.Namespace) -> list[Row]:
    """Warm up, then all rounds."""
    async with AsyncClient(requests, timeout=600.0) as client:
        began = time.monotonic()
        await ready(client, parts, options.patience)
        say(f"all workers are ready after {time.monotonic() - began:.1f} s")
        loads = {name: Load(client, name, options) for name in ("together", "apart")}
        for load in loads.values():
            for clients in (1, 4, options.clients):  # rates are learned, and graphs made
                await asyncio.gather(*(load.one(Found()) for _ in range(clients)))
        rate = options.rate or await loads["together"].most(options.clients, options.seconds)
        say(f"together: {rate:.2f} requests a second, at most")
        found = {name: Found() for name in loads}
        for number in range(options.rounds):
            for name, load in loads.items():
                each = await load.replay(options.load * rate, options.seconds, number)
                say(f"round {number}, {name}: {each.figures()}")
                await rates(fleet)
                for values in ("gaps", "firsts"):
                    getattr(found[name], values).extend(getattr(each, values))
                found[name].tokens += each.tokens
                found[name].seconds += each.seconds
    return list(rows(found["apart"].figures(), found["together"].figures(), rate))


def rows(apart: Figures, together: Figures, rate: float) -> Iterator[Row]:
    """Apart beside together."""
    yield Row("card_apart_most_requests", rate, "requests/s")
    for name, ours, theirs in zip(Figures._fields, apart, together, strict=True):
        unit = "tok/s" if name == "tokens_per_second" else "s"
        yield compare(f"card_apart_{name}", ours, unit, "together", theirs, lower_is_better=unit == "s")


def decisions(metrics: str) -> dict[str, int]:
    """How many prompts were placed which way."""
    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=10) as answer:
        lines = [line.split() for line in answer.read().decode().splitlines() if line.startswith(COUNTED)]
    return {name.removeprefix(COUNTED).strip('"}'): int(float(count)) for name, count in lines}


async def rates(fleet: str) -> None:
    """Say what workers have measured, in tokens a second."""
    async with grpc.aio.insecure_channel(fleet) as channel:
        found = await fleet_pb2_grpc.FleetStub(channel).ListWorkers(fleet_pb2.ListWorkersRequest())
    for each in found.workers:
        status = each.status
        known = status.prefill_tokens_per_second, status.fetch_tokens_per_second, status.import_tokens_per_second
        say(f"{each.info.worker_id}: computes {known[0]:,.0f}, fetches {known[1]:,.0f}, takes in {known[2]:,.0f}")


def say(text: str) -> None:
    """What is no row."""
    print(text, file=sys.stderr, flush=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line. Exits with a message for what can't be run."""
    parser = parser_of(__doc__)
    parser.add_argument("--devices", default="cuda:0,cuda:1", help="two, or one for all (default: cuda:0,cuda:1)")
    parser.add_argument("--shape", choices=tuple(SHAPES), default="llama3_8b", help="(default: llama3_8b)")
    parser.add_argument("--prompt", type=int, default=2048, help="tokens (default: 2048)")
    parser.add_argument("--output", type=int, default=256, help="tokens (default: 256)")
    parser.add_argument("--clients", type=int, default=128, help="that take all there is (default: 128)")
    parser.add_argument("--rate", type=float, default=0.0, help="requests a second at most (default: measured)")
    parser.add_argument("--load", type=float, default=0.7, help="share of that (default: 0.7)")
    parser.add_argument("--seconds", type=float, default=40.0, help="of a turn (default: 40)")
    parser.add_argument("--rounds", type=int, default=1, help="turns of each (default: 1)")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds for all to start (default: 300)")
    parser.add_argument("--worker", action="append", default=[], metavar="FLAG", help="more of workers: --worker=--x=y")
    options = parser.parse_args(arguments)
    options.devices = options.devices.split(",")
    options.vocabulary = SHAPES[options.shape].vocabulary
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    options = parse(arguments)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        fleet, requests, metrics, parts = start(stack, Path(folder), options)
        found = asyncio.run(measure(fleet, requests, parts, options))
        say(f"prompts: {decisions(metrics)}")
    publish(found, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
