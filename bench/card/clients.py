"""A worker's own gRPC, many clients in a closed loop, in turn with vLLM's AsyncLLM on the same card.

    python -m bench.card.clients --vllm PYTHONPATH     # 64 clients, 1,024 tokens in and 256 out, Llama-3-8B's shape
    python -m bench.card.clients --accelerator cpu --shape tiny --clients 4 --requests 8 --prompt 64 --output 16

Both have random weights of the shape, and no prefix cache. Rows have the worker's figures, medians of `--rounds`, and
vLLM's as peer where it is installed.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.card import online
from bench.card.online import Load, Stamps, closed_loop
from bench.card.peer import Peer
from bench.card.shapes import BLOCK_SIZE, SHAPES
from bench.command import parser_of
from bench.load.worker import GREEDY
from bench.report import Row, compare, publish
from tests.support.running_worker import RunningWorker
from tests.support.session_client import SessionClient, ended

from polyfleet.simulator.figures import percentile
from polyfleet.v1 import worker_pb2 as pb


class Figures(NamedTuple):
    """Of one load; times in seconds."""

    tokens_per_second: float
    gap_p50: float
    gap_p99: float
    first_p50: float
    first_p99: float


def figures(stamps: Stamps) -> Figures:
    """Over all of a load's requests."""
    firsts = [times[1] - times[0] for times in stamps]
    gaps = [after - before for times in stamps for before, after in pairwise(times[1:])]
    seconds = max(times[-1] for times in stamps) - min(times[0] for times in stamps)
    rate = sum(len(times) - 1 for times in stamps) / seconds
    halves = percentile(gaps, 0.5), percentile(gaps, 0.99), percentile(firsts, 0.5), percentile(firsts, 0.99)
    return Figures(rate, *halves)


class Clients:
    """Of one session with a worker, which know when each token came."""

    def __init__(self, session: SessionClient) -> None:
        self._session, self._writing = session, asyncio.Lock()  # gRPC takes one message at a time
        self._times: dict[str, list[float]] = {}
        self._over: dict[str, asyncio.Event] = {}
        self._draw = random.Random(0)
        self.reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for delta in self._session.deltas():
            if delta.HasField("error"):
                raise RuntimeError(delta.error.message)
            self._times[delta.sequence_id] += [time.perf_counter()] * len(delta.token_ids)
            if ended(delta):
                self._over[delta.sequence_id].set()
        raise RuntimeError("the session ended")

    async def load(self, load: Load) -> Stamps:
        """What became of it. Raises RuntimeError where a sequence fails."""
        stamps = Stamps()
        work = asyncio.create_task(closed_loop(load, partial(self._one, load, stamps)))
        await asyncio.wait((work, self.reading), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            work.cancel()
            self.reading.result()
        return stamps

    async def _one(self, load: Load, stamps: Stamps) -> None:
        name = str(len(self._times))
        prompt = self._draw.choices(range(16, load["vocabulary"] - 16), k=load["prompt"])
        times, over = [time.perf_counter()], asyncio.Event()
        self._times[name], self._over[name] = times, over
        start = pb.StartSequence(sequence_id=name, request_id=name, prompt_ids=prompt, sampling=GREEDY)
        start.max_tokens, start.ignore_eos = load["output"], True
        async with self._writing:
            await self._session.start(start)
        await over.wait()
        stamps.append(times)


async def measure(options: argparse.Namespace) -> list[Row]:
    """All rounds of both, behind one that warms up."""
    shape = SHAPES[options.shape]
    load = {name: getattr(options, name) for name in ("clients", "requests", "prompt", "output")}
    load["vocabulary"] = shape.vocabulary
    ours, theirs = list[Figures](), list[Figures]()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        peer = None
        if options.vllm:
            peer = Peer(shape.write(folder / "vllm"), options.vllm, options.context, online.__file__)
            stack.callback(peer.close)
        clients = await started(stack, folder, options)
        if peer is not None:
            await asyncio.to_thread(peer.ready)
        for number in range(options.rounds + 1):
            found = figures(await clients.load(load))
            other = figures((await asyncio.to_thread(peer.ask, load))["stamps"]) if peer is not None else None
            say(f"round {number}: {found}" + (f", vLLM {other}" if other else ""))
            if number:
                ours.append(found)
                theirs += [other] if other else []
    return rows(ours, theirs, peer.name if peer is not None else "")


async def started(stack: AsyncExitStack, folder: Path, options: argparse.Namespace) -> Clients:
    """Of a worker that is ready, until the stack ends."""
    room = {"context-length": options.context, "kv-cache-tokens": options.clients * options.context}
    room |= {"max-sequences": options.clients, "step-seconds": options.step_seconds, "step-tokens": 2048}
    flags = [f"--{name}={value}" for name, value in room.items()]
    began = time.monotonic()
    running = RunningWorker(
        folder, f"--accelerator={options.accelerator}", *flags, model=options.shape, command="bench.card.worker"
    )
    worker = await stack.enter_async_context(running)
    say(f"the worker is ready after {time.monotonic() - began:.1f} s")
    clients = Clients(await stack.enter_async_context(worker.session()))
    stack.callback(clients.reading.cancel)
    return clients


def rows(ours: Sequence[Figures], theirs: Sequence[Figures], peer: str) -> list[Row]:
    """Medians, each beside the peer's."""
    found = list[Row]()
    for place, name in enumerate(Figures._fields):
        rate = name == "tokens_per_second"
        other = median(each[place] for each in theirs) if theirs else None
        value, unit = median(each[place] for each in ours), "tok/s" if rate else "s"
        found.append(compare(f"card_clients_{name}", value, unit, peer, other, lower_is_better=not rate))
    return found


def say(text: str) -> None:
    """What is no row."""
    print(text, file=sys.stderr, flush=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--accelerator", default="cuda", help="whose device the worker takes (default: cuda)")
    parser.add_argument("--shape", choices=tuple(SHAPES), default="llama3_8b", help="(default: llama3_8b)")
    parser.add_argument("--clients", type=int, default=64, help="(default: 64)")
    parser.add_argument("--requests", type=int, default=192, help="of a round (default: 192)")
    parser.add_argument("--prompt", type=int, default=1024, help="tokens (default: 1024)")
    parser.add_argument("--output", type=int, default=256, help="tokens (default: 256)")
    parser.add_argument("--step-seconds", type=float, default=0.03, help="of the worker (default: 0.03)")
    parser.add_argument("--rounds", type=int, default=2, help="in turn, behind one that warms up (default: 2)")
    parser.add_argument("--vllm", default="", metavar="PYTHONPATH", help="where vLLM is installed")
    options = parser.parse_args(arguments)
    options.context = -(-(options.prompt + options.output) // BLOCK_SIZE) * BLOCK_SIZE
    return options


if __name__ == "__main__":
    parsed = parse(None)
    publish(asyncio.run(measure(parsed)), parsed.json)
