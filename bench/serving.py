"""Benchmark of a served endpoint: time to first token, time per token, latency, throughput.

    python bench/serving.py                                         # the gateway of `make serve`, one client
    python bench/serving.py --grpc 127.0.0.1:50051 --concurrency 8  # our own Generate
    python bench/serving.py --rate 4 --peer http://127.0.0.1:8080/v1
    python bench/serving.py --direct-worker 127.0.0.1:40123 --grpc 127.0.0.1:50051   # what the gateway adds
    python bench/serving.py --grpc 127.0.0.1:50051 --concurrency 16 --prompt ids --engine MODEL.gguf   # … and costs

Every run is bounded by --requests and --seconds. Only loopback is measured unless --allow-remote is given.
"""

import argparse
import asyncio
import sys
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it also runs as a file

import psutil
from bench.command import parser_of, positive, run
from bench.load.cpu import CpuClock
from bench.load.targets import HttpTarget
from bench.load.worker import WorkerTarget
from bench.report import Row, publish

from polyfleet.benchmark.figures import added_rows, load_rows, num_tokens
from polyfleet.benchmark.loops import Plan, Result, run_pairs, run_rounds, warm_up
from polyfleet.benchmark.target import GrpcTarget, Target
from polyfleet.benchmark.work import PROMPT_KINDS, Job, make_jobs
from polyfleet.client import PolyfleetError
from polyfleet.wire.auth import is_loopback

DEFAULT_URL = "http://127.0.0.1:8000/v1"


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line. Exits with a message for what can't be run."""
    parser = parser_of(__doc__)
    where = parser.add_argument_group("what is measured")
    where.add_argument("--url", help=f"base URL of an OpenAI-compatible endpoint (default {DEFAULT_URL})")
    where.add_argument("--grpc", metavar="ADDRESS", help="a Polyfleet gateway's host:port, instead of --url")
    where.add_argument("--model", default="", help="its model (default: the server's only one)")
    where.add_argument("--api-key-file", type=Path, help="file whose first line is the key")
    where.add_argument("--plain", action="store_true", help="send OpenAI's own fields only (no ignore_eos)")
    where.add_argument("--peer", metavar="URL", help="a second OpenAI-compatible endpoint, measured in turn")
    where.add_argument("--peer-model", default="")
    where.add_argument("--peer-api-key-file", type=Path)
    where.add_argument("--engine", metavar="MODEL", help="the engine alone with this GGUF file or folder, in turn")
    where.add_argument("--direct-worker", metavar="ADDRESS", help="a worker's host:port: measure what the gateway adds")
    where.add_argument("--fleet-token-file", type=Path, help="for --direct-worker off loopback")
    where.add_argument("--pid", action="append", default=[], metavar="NAME=PID", help="show CPU time of this process")
    where.add_argument("--allow-remote", action="store_true", help="allow targets beyond loopback")
    load = parser.add_argument_group("load")
    load.add_argument("--concurrency", type=positive, default=1, help="clients of the closed loop (default 1)")
    load.add_argument("--rate", type=float, default=0.0, help="open loop: mean arrivals a second, as a Poisson process")
    load.add_argument("--requests", type=positive, default=32, help="requests for each target (default 32)")
    load.add_argument("--seconds", type=float, default=120.0, help="no request starts later (default 120 a target)")
    load.add_argument("--warmup", type=int, default=2, help="requests before measuring, for each target (default 2)")
    load.add_argument("--rounds", type=positive, default=4, help="turns between target and peer (default 4)")
    load.add_argument("--prompt", choices=PROMPT_KINDS, default="text", help="kind of prompt (default text)")
    load.add_argument("--prompt-tokens", type=positive, default=128, help="about so long; exact for ids (default 128)")
    load.add_argument("--max-tokens", type=positive, default=64, help="tokens to generate (default 64)")
    load.add_argument("--seed", type=int, default=0, help="of prompts and arrivals")
    options = parser.parse_args(arguments)
    _check(parser, options)
    return options


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if options.url and options.grpc:
        parser.error("give one of --url and --grpc")
    if options.direct_worker and (options.peer or options.rate or options.concurrency != 1):
        parser.error("--direct-worker sends one request after the other; leave --peer, --rate and --concurrency out")
    if options.direct_worker and options.prompt != "ids" and not options.grpc:
        parser.error("--direct-worker needs --grpc to tokenise the prompt, or --prompt ids")
    if options.engine and (options.peer or options.direct_worker or options.prompt != "ids"):
        parser.error("--engine needs --prompt ids, and no --peer or --direct-worker")
    if options.rate < 0 or options.seconds <= 0 or options.warmup < 0:
        parser.error("--rate and --warmup must be 0 or more, --seconds over 0")
    for url in filter(None, (options.url, options.peer)):
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
            parser.error(f"{url} is no http URL")
    hosts = [urlsplit(url or "").netloc for url in (options.url, options.peer)]
    for address in filter(None, (*hosts, options.grpc, options.direct_worker)):
        if not is_loopback(address) and not options.allow_remote:
            parser.error(f"{address} is not on this machine; give --allow-remote if you may put load on it")
    try:
        options.pids = {name: int(pid) for name, pid in (each.split("=", 1) for each in options.pid)}
    except ValueError:
        parser.error("--pid must be NAME=PID")


async def measure(options: argparse.Namespace) -> tuple[list[Result], list[Row]]:
    """Run what the command line asks for."""
    plan = Plan(**{name: getattr(options, name) for name in Plan.__dataclass_fields__})
    jobs = make_jobs(options.prompt, options.prompt_tokens, options.max_tokens, options.seed)
    async with AsyncExitStack() as stack:
        targets = [await stack.enter_async_context(target) for target in make_targets(options)]
        if options.direct_worker:
            job = next(jobs)
            wanted = [job, replace(job, token_ids=await _token_ids(targets[0], job))]
            for target, own in zip(targets, wanted, strict=True):
                await warm_up(target, repeat(own), plan)
            cpu = CpuClock(options.pids)
            results = await run_pairs(targets, wanted, plan)
            rows = added_rows(*results)
        else:
            for target in targets:
                await warm_up(target, jobs, plan)
            cpu = CpuClock(options.pids)
            results = await run_rounds(targets, jobs, plan)
            rows = load_rows(results[0], results[1] if len(results) > 1 else None)
        served = results[:1] if options.engine else results  # the engine alone is in this process
        return results, rows + cpu.rows(num_tokens(served))


def make_targets(options: argparse.Namespace) -> list[Target]:
    """The measured target, and behind it the peer or the worker if one is given."""
    key = _first_line(options.api_key_file)
    targets: list[Target] = [
        GrpcTarget("gateway", options.grpc, options.model, key)
        if options.grpc
        else HttpTarget("endpoint", options.url or DEFAULT_URL, options.model, key, plain=options.plain)
    ]
    if options.peer:
        key = _first_line(options.peer_api_key_file)
        targets.append(HttpTarget("peer", options.peer, options.peer_model, key, plain=options.plain))
    if options.engine:
        from bench.load.engine import EngineTarget  # brings torch

        targets.append(EngineTarget("engine alone", options.engine))
    if options.direct_worker:
        targets.append(WorkerTarget("worker", options.direct_worker, _first_line(options.fleet_token_file)))
    return targets


async def _token_ids(target: Target, job: Job) -> tuple[int, ...]:
    return await target.token_ids(job) if isinstance(target, GrpcTarget) else job.token_ids


def _first_line(path: Path | None) -> str:
    return path.read_text(encoding="utf-8").split("\n", 1)[0].strip() if path else ""


def main() -> int:
    """Run, print, and say by the exit status whether every target answered at least once."""
    options = parse()
    try:
        results, rows = asyncio.run(measure(options))
    except (PolyfleetError, psutil.Error, OSError) as error:
        print(f"serving: {error}", file=sys.stderr)
        return 1
    answered = all(result.good for result in results)
    if answered:
        publish(rows, options.json)
    for result in results:
        for message, count in Counter(result.errors).most_common(3):
            print(f"{result.target.name} {result.target.address}: {count} × {message}", file=sys.stderr)
    if not answered:
        print("Nothing was measured: start the server (`make serve`), or give --url or --grpc.", file=sys.stderr)
    return 0 if answered else 1


if __name__ == "__main__":
    run(main)
