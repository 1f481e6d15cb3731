"""Chaos: faults in every part of a fleet of real processes, while streams run whose every token is checked.

    python -m bench.chaos storm                         # every fault in turn; --rounds, --together 2
    python -m bench.chaos storm --faults stop-engine,half-open-worker --seed 7
    python -m bench.chaos kills                         # pauses of streams whose worker or engine is killed
    python -m bench.chaos hangs                         # … that hangs, or whose network does
    python -m bench.chaos rolling --requests 20000      # every process restarted in turn, in good order
    python -m bench.chaos tenants                       # a tenant beside one with 20 times its load, and alone
    python -m bench.chaos cancels --streams 100000      # streams that are left; what is held of them afterwards
    python -m bench.chaos stack --rounds 3              # `polyfleet serve`: real engines, every part of Ray

Workers are simulated, but for `stack`'s, their tokens a function of prompt and position. A storm with the same seed
strikes in the same order. Ends with status 1 when a token was wrong or a stream was lost (ended other than with all
its tokens or, before the first one, with a refusal), or something is held when all have left. `stack`'s cases and
judgement are bench/soak.py's.
"""

import argparse
import asyncio
import random
import signal
import sys
import tempfile
from pathlib import Path

from bench.chaos import stack
from bench.chaos.crowds import HELD, cancels, tenants
from bench.chaos.faults import FAULTS, OWN_NETWORK
from bench.chaos.fleet import ChaosFleet
from bench.chaos.network import enter_network, network_problem
from bench.chaos.runs import HANGS, KILLS, Disturb, disturbed, paused, rolling, say, storm, tally_rows
from bench.command import parser_of
from bench.report import Row, publish
from bench.soaking.stack import OwnStack, StackError
from bench.soaking.streams import StreamError, Tally

CROWDS = ("tenants", "cancels")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line. Exits with a message for what can't be run."""
    parser = parser_of(__doc__)
    parser.add_argument("run", choices=("storm", "kills", "hangs", "rolling", "stack", *CROWDS))
    some = f"storm: some of {','.join(FAULTS)}; stack: of {','.join(stack.FAULTS)} (default: all)"
    parser.add_argument("--faults", default="", help=some)
    parser.add_argument("--rounds", type=int, default=1, help="storm, stack: times that each fault strikes (default 1)")
    parser.add_argument("--together", type=int, default=1, help="storm: faults at once (default 1)")
    parser.add_argument("--requests", type=int, default=20_000, help="rolling: finished streams (default 20000)")
    parser.add_argument("--pauses", type=int, default=300, help="kills, hangs: streams that moved (default 300)")
    parser.add_argument("--streams", type=int, default=100_000, help="cancels: that are left (default 100000)")
    parser.add_argument("--seconds", type=float, default=20.0, help="tenants: of each turn (default 20)")
    parser.add_argument("--workers", type=int, help="(default 4; stack: 2)")
    parser.add_argument("--gateways", type=int, default=2, help="(default 2)")
    parser.add_argument("--clients", type=int, help="streams at once (24; kills, hangs: 48; rolling: 96; stack: 6)")
    parser.add_argument("--tokens", type=int, default=200, help="of the longest stream, 20 ms apart (default 200)")
    parser.add_argument("--seed", type=int, default=random.randrange(2**31), help="of faults and prompts; printed")
    options = parser.parse_args(arguments)
    known = stack.FAULTS if options.run == "stack" else [*FAULTS]
    options.names = [*filter(None, options.faults.split(","))] or [*known]
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"--faults knows no {', '.join(unknown)}")
    if options.run == "storm" and OWN_NETWORK.keys() & options.names:
        _choose_network(parser, options)
    if options.clients is None:
        options.clients = {"kills": 48, "hangs": 48, "rolling": 96, "stack": 6}.get(options.run, 24)
    if options.workers is None:
        options.workers = 2 if options.run == "stack" else 4
    if min(options.rounds, options.together, options.clients, options.gateways, options.tokens) < 1:
        parser.error("--rounds, --together, --clients, --gateways and --tokens must be 1 or more")
    if options.workers < 2:
        parser.error("--workers must be 2 or more: streams move to another one")
    return options


def _choose_network(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Be in a network of its own, or leave out the faults that need one where nobody named them."""
    if not (problem := network_problem()):
        enter_network(sys.argv[1:])
    elif options.faults:
        parser.error(problem)
    else:
        say(f"{problem} Without {', '.join(OWN_NETWORK)}.")
        options.names = [name for name in options.names if name not in OWN_NETWORK]


def disturb_of(options: argparse.Namespace, fleet: ChaosFleet) -> Disturb:
    """What the command line asks for."""
    if options.run == "storm":
        return storm(fleet, options.names, options.rounds, options.seed, options.together)
    if options.run == "rolling":
        return rolling(fleet, options.requests)
    return paused(fleet, KILLS if options.run == "kills" else HANGS, options.pauses, options.seed)


async def crowd(options: argparse.Namespace) -> list[Row]:
    """A run without faults."""
    if options.run == "cancels":
        return await cancels(options.streams, workers=options.workers, seed=options.seed)
    with tempfile.TemporaryDirectory() as folder:
        load = {"workers": options.workers, "clients": 2, "seconds": options.seconds, "rounds": 1 + options.rounds}
        return await tenants(Path(folder), **load)


def stack_run(options: argparse.Namespace) -> tuple[Tally, list[Row]]:
    """Faults in a whole stack."""
    say("starting a stack …")
    load = {"rounds": options.rounds, "workers": options.workers, "clients": options.clients, "seed": options.seed}
    with OwnStack(options.workers) as own:
        say(f"seed {options.seed}, logs below {own.folder}")
        tally, rows = asyncio.run(stack.stack_storm(own, options.names, **load))
        own.keep_folder = failed(tally)
        return tally, rows


async def run(options: argparse.Namespace) -> tuple[Tally, list[Row]]:
    """Run it."""
    slots = -(-options.clients // (options.workers - 1))  # so few that all workers have streams
    hosts = options.run == "storm"
    async with ChaosFleet(options.workers, options.gateways, max_sequences=slots, host_faults=hosts) as fleet:
        say(f"seed {options.seed}, logs in {fleet.folder}")
        load = {"clients": options.clients, "tokens": options.tokens, "seed": options.seed}
        load["short"] = 2 if options.run == "rolling" else 0
        tally, rows = await disturbed(fleet, disturb_of(options, fleet), **load)
        fleet.keep_folder = failed(tally)
        return tally, rows


def failed(tally: Tally) -> bool:
    """Whether a token was wrong or a stream was lost."""
    return bool(tally.wrong or tally.lost)


def main(arguments: list[str] | None = None) -> int:
    """Run, print, and say by the exit status whether every token was right and no stream was lost."""
    options = parse(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what was started is ended then, too
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        if options.run in CROWDS:
            rows = publish(asyncio.run(crowd(options)), options.json)
            return 1 if any(row.value for row in rows if row.unit == HELD) else 0
        tally, rows = stack_run(options) if options.run == "stack" else asyncio.run(run(options))
    except (StackError, StreamError, OSError) as error:
        say(f"chaos: {error}")
        return 1
    publish([*tally_rows(options.run, tally), *rows], options.json)
    for kind, examples in (("wrong", tally.wrong), ("lost", tally.lost)):
        for example in examples[:10]:
            say(f"{kind}: {example}")
    return 1 if failed(tally) else 0


if __name__ == "__main__":
    sys.exit(main())
