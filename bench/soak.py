"""Soak of a whole stack: mixed streams with cancels, kills and attacks; every token compared, `/healthz` timed.

    python bench/soak.py                                   # 8 minutes, a stack of its own with two workers
    python bench/soak.py --seconds 60 --cases 6            # a short one
    python bench/soak.py --attack headers,slow,prompts     # … while others mean harm
    python bench/soak.py --attack all --json soak.json
    python bench/soak.py --grpc 127.0.0.1:50051 --http 127.0.0.1:8000   # a stack that runs already: kills nothing

The stack that it starts has the option `reproducible`, without which AMX rounds long prompts one way or the other.
First each case is answered alone, by the same stack; whatever differs from that later is wrong. Ends with status 1
when a token was wrong or a stream that had begun was lost. Refused before its first token (UNAVAILABLE and
RESOURCE_EXHAUSTED) is not lost.
"""

import argparse
import asyncio
import signal
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it also runs as a file

from bench.command import above_zero, parser_of, positive, run
from bench.report import Row, publish
from bench.soaking.attacks import ATTACKS
from bench.soaking.cases import Answer, Case, first_difference, make_cases
from bench.soaking.stack import Helper, Killer, OwnStack, StackError
from bench.soaking.streams import Caller, Soak, StreamError, Tally

from polyfleet.wire.auth import is_loopback

LOOK_SECONDS = 10.0  # between two lines of progress


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line. Exits with a message for what can't be run."""
    parser = parser_of(__doc__)
    stack = parser.add_argument_group("the stack; without --grpc and --http one is started")
    stack.add_argument("--workers", type=positive, default=2, help="of the stack that is started (default 2)")
    stack.add_argument("--model", default="", help="GGUF file or folder that it serves (default: SmolLM2)")
    stack.add_argument("--grpc", default="", metavar="ADDRESS", help="host:port of a gateway that runs already")
    stack.add_argument("--http", default="", metavar="ADDRESS", help="its HTTP port")
    stack.add_argument("--api-key-file", type=Path, help="file whose first line is the key")
    load = parser.add_argument_group("load")
    load.add_argument("--seconds", type=above_zero, default=480.0, help="no stream starts later (default 480)")
    load.add_argument("--clients", type=positive, default=8, help="streams at once (default 8)")
    load.add_argument("--cases", type=positive, default=24, help="different requests (default 24)")
    load.add_argument("--max-tokens", type=positive, default=96, help="generated; short prompts: twice (default 96)")
    load.add_argument("--cancel-share", type=float, default=0.2, help="of streams, left half-way (default 0.2)")
    load.add_argument("--kill-seconds", type=float, default=40.0, help="between kills; 0: none (default 40)")
    load.add_argument("--attack", default="", metavar="NAMES", help=f"all, or some of {','.join(ATTACKS)}")
    load.add_argument("--seed", type=int, default=0, help="of cases, cancels and kills")
    options = parser.parse_args(arguments)
    options.attacks = [*ATTACKS] if options.attack == "all" else [name for name in options.attack.split(",") if name]
    if unknown := [name for name in options.attacks if name not in ATTACKS]:
        parser.error(f"--attack knows no {', '.join(unknown)}")
    if bool(options.grpc) != bool(options.http):
        parser.error("give both of --grpc and --http, or neither")
    if not all(is_loopback(address) for address in (options.grpc, options.http) if address):
        parser.error("only a stack on loopback is put under such load")
    if min(options.seconds, options.clients, options.cases, options.max_tokens, options.workers) <= 0:
        parser.error("--seconds, --clients, --cases, --max-tokens and --workers must be over 0")
    return options


async def answers_alone(caller: Caller, cases: list[Case]) -> dict[Case, Answer]:
    """Each case's undisturbed answer; HTTP must agree with gRPC. Raises StreamError."""
    right = {}
    for number, case in enumerate(cases, 1):
        right[case] = (await caller.over_grpc(case)).answer
        say(f"answered alone: {number} of {len(cases)}")
    case = cases[0]
    if first_difference((await caller.over_http(case)).text, right[case].text, whole=True) is not None:
        raise StreamError("DATA_LOSS", f"HTTP and gRPC give other texts for {case.name}", begun=True)
    return right


async def soak(options: argparse.Namespace, stack: OwnStack | None) -> tuple[list[Row], Tally]:
    """Run it."""
    grpc, http = (stack.grpc, stack.http) if stack else (options.grpc, options.http)
    key = options.api_key_file.read_text().split("\n", 1)[0].strip() if options.api_key_file else ""
    async with Caller(grpc, http, key) as caller:
        right = await answers_alone(caller, make_cases(options.cases, options.max_tokens, options.seed))
        begin = stack.memory() if stack else {}
        run = Soak([caller], right, options.cancel_share, options.seed)
        killer = Killer(stack, options.seed) if stack and options.kill_seconds else None
        async with AsyncExitStack() as helpers:
            probe = await helpers.enter_async_context(Helper("probe.py", http))
            harm = Helper("attacks.py", http, grpc, ",".join(options.attacks)) if options.attacks else None
            if harm:
                await helpers.enter_async_context(harm)
            watch = asyncio.create_task(look_after(run.tally, caller, killer, options))
            await run.run(options.clients, options.seconds)
            watch.cancel()
        end = stack.memory() if stack else {}
    rows = [*stream_rows(run.tally), *probe_rows(probe.seen)]
    rows += [Row(f"soak_kills_{role}", count, "kills") for role, count in (killer.kills.items() if killer else ())]
    rows += [Row(f"soak_attack_{name}", count, "times") for name, count in (harm.seen.items() if harm else ())]
    for role in end:
        rows += [Row(f"soak_rss_{role}_begin", begin.get(role), "MB"), Row(f"soak_rss_{role}_end", end[role], "MB")]
    return rows, run.tally


async def look_after(tally: Tally, caller: Caller, killer: Killer | None, options: argparse.Namespace) -> None:
    """Tell how it goes, and kill when it is time and all workers are ready."""
    begin = killed = time.monotonic()
    while True:
        await asyncio.sleep(min(LOOK_SECONDS, options.kill_seconds or LOOK_SECONDS))
        now = time.monotonic()
        done, wrong, lost = tally.finished.total(), len(tally.wrong), len(tally.lost)
        say(f"{now - begin:.0f} s: {done} finished, {tally.cancelled} cancelled, {wrong} wrong, {lost} lost")
        ready = killer is not None and now - killed >= options.kill_seconds
        if killer and ready and await caller.ready_workers() >= options.workers:
            await asyncio.to_thread(killer.strike)
            killed = now


def stream_rows(tally: Tally) -> list[Row]:
    """What became of the streams."""
    rows = [Row(f"soak_finished_{protocol}", count, "streams") for protocol, count in sorted(tally.finished.items())]
    rows += [
        Row("soak_cancelled", tally.cancelled, "streams"),
        Row("soak_moved", tally.moved, "moves"),
        Row("soak_tokens_grpc", tally.tokens, "tokens"),
        Row("soak_wrong", len(tally.wrong), "streams"),
        Row("soak_lost", len(tally.lost), "streams"),
    ]
    return rows + [Row(f"soak_status_{status}", count, "streams") for status, count in sorted(tally.statuses.items())]


def probe_rows(seen: dict[str, float]) -> list[Row]:
    """How `/healthz` answered; the probe's own delay says what the machine's load adds to that."""
    rows = [Row(f"soak_healthz_{name}", seen[name], "ms") for name in ("p50", "p99", "max")]
    rows.append(Row("soak_healthz_probe_delay_p99", seen["delay_p99"], "ms"))
    return [*rows, Row("soak_healthz_failures", seen["failures"], "requests")]


def say(text: str) -> None:
    """A line of progress."""
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Run, print, and say by the exit status whether every token was right and no stream lost."""
    options = parse()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the stack is stopped then, too
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        if options.grpc:
            rows, tally = asyncio.run(soak(options, None))
        else:
            say("starting a stack …")
            with OwnStack(options.workers, options.model) as stack:
                say(f"gRPC {stack.grpc}, HTTP {stack.http}, logs below {stack.folder}")
                rows, tally = asyncio.run(soak(options, stack))
                stack.keep_folder = bool(tally.wrong or tally.lost)
    except (StackError, StreamError, OSError) as error:
        say(f"soak: {error}")
        return 1
    publish(rows, options.json)
    for kind, examples in (("wrong", tally.wrong), ("lost", tally.lost)):
        for example in examples[:10]:
            say(f"{kind}: {example}")
    return 0 if tally.finished and not tally.wrong and not tally.lost else 1


if __name__ == "__main__":
    run(main)
