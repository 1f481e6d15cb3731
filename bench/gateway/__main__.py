"""Streams that a CPU second of the gateway carries, beside bare gRPC servers and relays, in turn in one run.

    python -m bench.gateway                                  # all contenders
    python -m bench.gateway --processes 4 --only gateway     # … of four processes
    python -m bench.gateway --processes 4 --only gateway,apart --clients 128
    python -m bench.gateway --rounds 1 --seconds 5           # a quick look

Streams of 32 tokens, 10 ms apart, one message a token, 64 at a time over 8 connections. The gateway has keys, a
tokenizer, metrics and logs, one worker behind it; CPU time is that of all its processes. The bare ones are
bench/gateway/relays.py's: `server` has tokens of its own, `relay` an upstream stream for each, `multiplexed` one for
all. `apart` are as many gateways as the one has processes, which share nothing: where cores are short, so many cost no
less, and what the one carries beside them is what sharing ports, quotas and metrics takes.

Rows: streams per CPU second and CPU microseconds per token of all rounds together, whose lowest and highest stand
beside; the share of the CPU time that the busiest process takes, which bounds what several carry on cores of their own;
with `apart`, how many times what one process carries that is (`gateway_times_one_process`);
the time to the first token at 32 clients, the median, and what is added to the bare server's own: of clients that begin
`together`, within 10 ms, and so end and begin again with only chance to part them, and of `spread` ones, of which some
begin at any time.
"""

import argparse
import asyncio
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import yaml
from bench.command import parser_of
from bench.gateway.far_end import TOKENS
from bench.gateway.load import CLIENTS_PER_CONNECTION, KEY, GrpcStreams, HttpStreams, Load, drive
from bench.report import Row, compare, publish

BARE = ("server", "relay", "multiplexed")
APART = "apart"
CONTENDERS = ("gateway", *BARE, "http", APART)
FIRST_CLIENTS = 32  # of the runs whose first tokens are timed
PHASES = {"together": 0.0, "spread": float(TOKENS)}  # over how many tokens of a stream their begins are spread
READY = "Gateway listens.", "The gateway's processes listen."


class Contender(NamedTuple):
    """One of them, running, be it in several processes with a port each."""

    name: str
    addresses: tuple[str, ...]
    pids: tuple[int, ...]


class Turn(NamedTuple):
    """What one round took of one contender."""

    load: Load
    cpu_seconds: float
    busiest: float = 1.0  # share of them that the process took which took most


def cpu_seconds(pids: Sequence[int]) -> Counter[int]:
    """User and system time of processes and all below them, each one's."""
    found = Counter[int]()
    for parent in map(psutil.Process, pids):
        for each in (parent, *parent.children(recursive=True)):
            times = each.cpu_times()
            found[each.pid] = times.user + times.system
    return found


@contextmanager
def process(*command: str, **options: Any) -> Iterator["subprocess.Popen[str]"]:
    """`python -m …`, ended behind the block."""
    started = subprocess.Popen([sys.executable, "-m", *command], text=True, **options)
    try:
        yield started
    finally:
        started.terminate()
        started.wait(30)


def said(started: "subprocess.Popen[str]") -> list[str]:
    """Its first line, in words."""
    assert started.stdout is not None
    words = started.stdout.readline().split()
    if not words:
        raise SystemExit(f"process {started.pid} did not start")
    return words


@contextmanager
def gateway(fleet: str, processes: int, folder: Path) -> Iterator[tuple[str, str, int]]:
    """Its addresses for gRPC and HTTP, and its pid."""
    folder = Path(tempfile.mkdtemp(dir=folder))
    keys = [{"id": "bench", "hash": hashlib.sha256(KEY.encode()).hexdigest()}]
    (folder / "keys.yaml").write_text(yaml.safe_dump({"keys": keys}))
    ports = [word for port in ("grpc", "http", "metrics") for word in (f"--{port}-listen", "127.0.0.1:0")]
    command = ["polyfleet.gateway", *ports, "--fleet", fleet, "--keys-file", str(folder / "keys.yaml")]
    log = folder / "gateway.log"
    with log.open("w") as file, process(*command, "--processes", str(processes), stderr=file) as started:
        while started.poll() is None:
            lines = [json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]
            if found := next((each for each in lines if each["message"] in READY[processes > 1 :]), None):
                yield f"127.0.0.1:{found['grpc_port']}", f"127.0.0.1:{found['http_port']}", started.pid
                return
            time.sleep(0.1)
        raise SystemExit(f"the gateway did not start: {log.read_text()[-500:]}")


def start(options: argparse.Namespace, stack: ExitStack) -> list[Contender]:
    """All that are wanted."""
    gap, folder = str(options.gap), Path(stack.enter_context(tempfile.TemporaryDirectory()))
    piped = {"stdout": subprocess.PIPE}
    fleet, worker, generate = said(stack.enter_context(process("bench.gateway.far_end", gap, **piped)))
    found = []
    if {"gateway", "http"} & set(options.only):
        grpc, http, pid = stack.enter_context(gateway(fleet, options.processes, folder))
        found = [Contender("gateway", (grpc,), (pid,)), Contender("http", (http,), (pid,))]
    if APART in options.only:
        several = [stack.enter_context(gateway(fleet, 1, folder)) for _ in range(options.processes)]
        grpcs, _, pids = zip(*several, strict=True)
        found.append(Contender(APART, grpcs, pids))
    for kind in BARE:
        if kind in options.only:
            upstream = worker if kind == "multiplexed" else generate
            started = stack.enter_context(process("bench.gateway.relays", kind, upstream, gap, **piped))
            found.append(Contender(kind, (said(started)[0],), (started.pid,)))
    return [each for each in found if each.name in options.only]


async def turn(
    contender: Contender, clients: int, per_connection: int, seconds: float, gap: float, phases: float = 0.0
) -> Turn:
    """Warm up, then measure. See `drive`; `per_connection`: clients of one."""
    connections = max(1, clients // per_connection)
    http = contender.name == "http"
    streams = HttpStreams(contender.addresses[0]) if http else GrpcStreams(contender.addresses, connections)
    await drive(streams.one, clients, 0.0, gap)
    before = cpu_seconds(contender.pids)
    load = await drive(streams.one, clients, seconds, gap, phases)
    after = cpu_seconds(contender.pids)
    await streams.close()
    used = {pid: after[pid] - before[pid] for pid in after}
    return Turn(load, sum(used.values()), max(used.values()) / sum(used.values()))


def rows(turns: dict[str, list[Turn]], firsts: dict[tuple[str, str], list[Turn]]) -> Iterator[Row]:
    """Of each contender; the gateway's beside those of each other one. `firsts`: by how clients begin, and by name."""
    rates = {name: sum(t.load.streams for t in some) / sum(t.cpu_seconds for t in some) for name, some in turns.items()}
    for name, some in turns.items():
        each = sorted(turn.load.streams / turn.cpu_seconds for turn in some)
        spread = f"{each[0]:.0f} to {each[-1]:.0f}"
        yield Row(f"gateway_streams_per_cpu_second_{name}", rates[name], "streams", peer=spread)
        yield Row(f"gateway_cpu_per_token_{name}", 1e6 / rates[name] / TOKENS, "us")
        messages = sum(turn.load.messages for turn in some) / sum(turn.load.streams for turn in some)
        yield Row(f"gateway_messages_per_stream_{name}", messages, "messages")
        if (busiest := statistics.mean(turn.busiest for turn in some)) < 1:
            yield Row(f"gateway_busiest_process_{name}", busiest, "of all CPU time")
    for name in (*BARE, APART):
        if {"gateway", name} <= rates.keys():
            yield compare(f"gateway_beside_{name}", rates["gateway"], "streams", name, rates[name])
    if {"gateway", APART} <= rates.keys():
        shares = statistics.mean(turn.busiest for turn in turns["gateway"])
        yield Row("gateway_times_one_process", rates["gateway"] / rates[APART] / shares, "x")
    medians = {key: statistics.median(turn.load.first_seconds for turn in some) for key, some in firsts.items()}
    for (begin, name), median in medians.items():
        yield Row(f"gateway_first_token_{begin}_{name}", median * 1000, "ms")
        if (server := medians.get((begin, "server"))) is not None and name != "server":
            yield Row(f"gateway_added_first_token_{begin}_{name}", (median - server) * 1000, "ms")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line. Exits with a message for what can't be run."""
    parser = parser_of(__doc__)
    parser.add_argument(
        "--only", help=f"some of {','.join(CONTENDERS)} (default: all but {APART})", default=",".join(CONTENDERS[:-1])
    )
    parser.add_argument("--processes", type=int, default=1, help="of the gateway (default 1)")
    parser.add_argument("--clients", type=int, default=64, help="streams at a time (default 64)")
    parser.add_argument("--per-connection", type=int, default=CLIENTS_PER_CONNECTION, help="clients of one (default 8)")
    parser.add_argument("--gap", type=float, default=0.01, help="seconds between two tokens (default 0.01)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a contender's turn (default 10)")
    parser.add_argument("--rounds", type=int, default=4, help="turns of each contender (default 4)")
    options = parser.parse_args(arguments)
    options.only = options.only.split(",")
    if unknown := set(options.only) - set(CONTENDERS):
        parser.error(f"--only: there is no {', '.join(sorted(unknown))}")
    if (
        min(options.processes, options.clients, options.per_connection, options.rounds) < 1
        or min(options.gap, options.seconds) <= 0
    ):
        parser.error(
            "--processes, --clients, --per-connection and --rounds must be 1 or more, --gap and --seconds over 0"
        )
    return options


def main() -> int:
    """Run and print."""
    options = parse()
    with ExitStack() as stack:
        contenders = start(options, stack)
        turns, firsts = defaultdict[str, list[Turn]](list), defaultdict[tuple[str, str], list[Turn]](list)
        for _ in range(options.rounds):
            for each in contenders:
                took = turn(each, options.clients, options.per_connection, options.seconds, options.gap)
                turns[each.name].append(asyncio.run(took))
            for begin, tokens in PHASES.items():
                for each in contenders:
                    of_few = FIRST_CLIENTS, CLIENTS_PER_CONNECTION, options.seconds / 4, options.gap
                    took = turn(each, *of_few, tokens * options.gap)
                    firsts[begin, each.name].append(asyncio.run(took))
    publish(rows(turns, firsts), options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
