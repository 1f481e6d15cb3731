"""A group of two ranks beside one device, on the same random weights: tokens, log probabilities, decode, a killed rank.

    python -m bench.card.ranks                                     # two cards, Llama-3-8B's shape
    python -m bench.card.ranks --device cpu --shape tiny --sizes 1,4 --tokens 8   # a try, over gloo

Tokens are greedy ones of a small model in float32. In bfloat16, at the shape asked for, the first token's
likeliest log probabilities are compared and decode steps measured. Rows are two ranks, with one as peer.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

import psutil
import torch
from bench.card.ours import GREEDY, random_prompts
from bench.card.shapes import SHAPES, Shape, write_model
from bench.command import parser_of
from bench.report import Row, compare, publish
from tests.support.running_worker import REAL, RunningWorker

from polyfleet.engine import Engine
from polyfleet.process.within import Within
from polyfleet.v1 import worker_pb2 as pb
from polyfleet.wire.answers import SampledToken
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import SequenceRequest

RANKS = (1, 2)
SMALL = Shape(2048, 256, 4, 8, 4, 64, 512)
COMPARED, PROMPT, CONTEXT, LIKELIEST = 8, 128, 512, 3
RANK_MODULE = "polyfleet.executors.ranks.rank"
NOTICE_SECONDS = 60.0

Tokens = Mapping[str, list[SampledToken]]


def load(folder: Path, ranks: int, options: EngineOptions) -> Engine:
    """On so many devices."""
    began = time.monotonic()
    engine = Engine.load(str(folder), replace(options, tensor_parallel=ranks), lambda stage, progress: None)
    say(f"{ranks} rank(s), {engine.facts.executor}: loaded in {time.monotonic() - began:.1f} s")
    return engine


def run(engine: Engine, prompts: Sequence[Sequence[int]], new_tokens: int, logprobs: int | None = None) -> Tokens:
    """Each prompt's greedy tokens. Raises RuntimeError where one fails."""
    found: dict[str, list[SampledToken]] = {str(number): [] for number in range(len(prompts))}
    for name, prompt in zip(found, prompts, strict=True):
        asked = SequenceRequest(name, tuple(prompt), GREEDY, max_tokens=new_tokens, ignore_eos=True, logprobs=logprobs)
        engine.add(asked)
    while engine.has_work:
        for update in engine.step():
            if update.error:
                raise RuntimeError(update.error)
            found[update.sequence_id].extend(update.tokens)
    return found


async def lose_one(folder: Path, options: EngineOptions) -> list[Row]:
    """A worker of two ranks, one of which is killed among steps: until it has ended, and one in its place answers."""
    given = ["--accelerator", options.device, "--tensor-parallel", "2", "--dtype", options.dtype]
    given += ["--context-length", str(CONTEXT), "--kv-cache-tokens", str(options.kv_cache_tokens)]
    with tempfile.TemporaryDirectory() as room:
        worker = RunningWorker(Path(room), *given, model=str(folder), command=REAL)
        async with worker, decoding(worker):
            children = psutil.Process(worker.process.pid).children(recursive=True)
            next(each for each in children if RANK_MODULE in each.cmdline()).kill()
            began = time.monotonic()
            with Within(NOTICE_SECONDS):
                status = await worker.exit_status()
            ended = time.monotonic()
        say(f"a rank was killed: its worker ended with {status}")
        async with worker, decoding(worker):
            answered = time.monotonic()
    return [Row("card_ranks_ended", ended - began, "s"), Row("card_ranks_back", answered - began, "s")]


@asynccontextmanager
async def decoding(worker: RunningWorker) -> AsyncIterator[None]:
    """While a sequence of it has had its first token, and goes on."""
    async with worker.session() as session:
        await session.start(pb.StartSequence(sequence_id="one", prompt_ids=[1, 2, 3], max_tokens=CONTEXT - 8))
        await session.event()
        yield


def small(options: argparse.Namespace, folder: Path) -> Iterator[Row]:
    """Tokens of two ranks beside one's, and what becomes of a worker that loses one."""
    write_model(SMALL, folder, options.device, torch.float32)
    prompts = [random_prompts(1, 5 + 9 * (number % 7), SMALL.vocabulary, number)[0] for number in range(12)]
    engine_options = EngineOptions(
        device=options.device, dtype="float32", context_length=CONTEXT, max_sequences=16, kv_cache_tokens=16 * CONTEXT
    )
    found = {}
    for ranks in RANKS:
        engine = load(folder, ranks, engine_options)
        drawn = run(engine, prompts, options.tokens)
        found[ranks] = [token.token_id for tokens in drawn.values() for token in tokens]
        engine.close()
    same = sum(one == two for one, two in zip(found[1], found[2], strict=True))
    yield compare("card_ranks_same_tokens", same, "tokens", "one rank", len(found[1]))
    yield from asyncio.run(lose_one(folder, engine_options))


def large(options: argparse.Namespace, folder: Path) -> Iterator[Row]:
    """Log probabilities and decode steps at the shape asked for, in bfloat16."""
    shape, most = SHAPES[options.shape], max(options.sizes)
    write_model(shape, folder, options.device)
    engine_options = EngineOptions(
        **{"device": options.device, "dtype": "bfloat16", "context_length": CONTEXT, "max_sequences": most},
        **{"kv_cache_tokens": most * CONTEXT, "step_seconds": 60.0, "prefix_cache": False},
    )
    prompts = random_prompts(COMPARED, 64, shape.vocabulary, 99)
    steps: dict[int, list[float]] = {}
    tops: dict[int, list[dict[int, float]]] = {}
    for ranks in RANKS:
        engine = load(folder, ranks, engine_options)
        firsts = run(engine, prompts, 1, 20).values()
        tops[ranks] = [dict(zip(first.top_ids, first.top_logprobs, strict=True)) for (first,) in firsts]
        steps[ranks] = [decode(engine, shape, size, options) for size in options.sizes]
        say(f"{ranks} rank(s), decode of {options.sizes}: {', '.join(f'{each:.3f} ms' for each in steps[ranks])}")
        engine.close()
    yield Row("card_ranks_logprob_gap", gap(tops[1], tops[2]), "nats")
    for size, one, two in zip(options.sizes, steps[1], steps[2], strict=True):
        yield compare(f"card_ranks_decode_{size}", two, "ms", "one rank", one, lower_is_better=True)


def gap(ones: Sequence[Mapping[int, float]], twos: Sequence[Mapping[int, float]]) -> float:
    """How far the log probabilities of one rank's likeliest tokens are from two ranks' at most; infinite where two do
    not have a token among theirs.
    """
    pairs = zip(ones, twos, strict=True)
    far: list[float] = [
        abs(one[each] - two.get(each, float("-inf"))) for one, two in pairs for each in list(one)[:LIKELIEST]
    ]
    return max(far)


def decode(engine: Engine, shape: Shape, size: int, options: argparse.Namespace) -> float:
    """A step of so many sequences in milliseconds: (all tokens - one token) / those between, the median of rounds."""
    found = list[float]()
    for number in range(options.rounds + 1):  # the first one warms up
        seconds = []
        for new_tokens in (options.tokens + 1, 1):
            prompts = random_prompts(size, PROMPT, shape.vocabulary, 2 * number + (new_tokens == 1))
            began = time.perf_counter()
            run(engine, prompts, new_tokens)
            seconds.append(time.perf_counter() - began)
        found.append((seconds[0] - seconds[1]) / options.tokens * 1e3)
    return median(found[1:])


def say(text: str) -> None:
    """What is no row."""
    print(text, file=sys.stderr, flush=True)


def measure(options: argparse.Namespace) -> Iterator[Row]:
    """All rows, each as soon as it is there."""
    with tempfile.TemporaryDirectory() as folder:
        yield from small(options, Path(folder) / "small")
        yield from large(options, Path(folder) / "large")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line. Exits with a message for what can't be run."""
    parser = parser_of(__doc__)
    parser.add_argument("--device", default="cuda", help="cuda: the first two cards; cpu: two processes over gloo")
    parser.add_argument("--shape", default="llama3_8b", choices=SHAPES)
    sizes: tuple[int, ...] = (1, 32, 256)
    parser.add_argument("--sizes", default=sizes, type=lambda text: tuple(map(int, text.split(","))), help="decode's")
    parser.add_argument("--tokens", default=128, type=int, help="of each sequence")
    parser.add_argument("--rounds", default=3, type=int)
    options = parser.parse_args(arguments)
    if options.device != "cpu":
        found = torch.get_device_module(torch.device(options.device)).device_count()
        if found < max(RANKS):
            parser.error(f"--device {options.device} has {found} of {max(RANKS)} devices; cpu is a try without any")
    return options


if __name__ == "__main__":
    parsed = parse(None)
    publish(measure(parsed), parsed.json)
