"""Prefill and decode apart, in the simulator: how long tokens wait for each other among prompts of 2,048 tokens.

    python -m bench.apart [--requests N] [--load SHARE] [--json FILE]

Workers are as fast as an H100 is with an 8B model in bfloat16: 40,000 prompt tokens a second, a step of 6.5 ms and
23 µs a sequence, keys and values of 131,072 bytes a token read at 3 TB/s. Two that do both stand beside one of role
prefill and one of role decode, at the same rate of requests; rows are apart, with together as peer. Prompts travel
through shared memory (5 GB/s); a block of 64 tokens holds the steps of the worker that takes it in up for 0.15 ms.
"""

import random
from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

from bench.command import above_zero, parser_of, positive, run
from bench.report import Row, compare, publish

from polyfleet.placement.policy import Policy
from polyfleet.simulator.engine import GAPS
from polyfleet.simulator.figures import first_seconds, percentile
from polyfleet.simulator.fleet_file import FleetFile, Group, Speed
from polyfleet.simulator.simulate import Options, Outcome, Simulation
from polyfleet.simulator.trace import Arrival, Trace

PROMPT, OUTPUT = 2048, 256
TOKEN_BYTES = 131_072
STEPS = Speed(
    prefill_tokens_per_second=40_000, step_seconds=0.0065, sequence_seconds=2.3e-5, token_seconds=TOKEN_BYTES / 3e12
)
MOST_REQUESTS = 18.5  # a second, that two workers which do both can finish
LINKS = {"fetch_tokens_per_second": 5e9 / TOKEN_BYTES, "import_tokens_per_second": 64 / 0.15e-3}
Role = Literal["both", "prefill", "decode"]


class Figures(NamedTuple):
    """What became of a trace."""

    gap_p50: float
    gap_p99: float
    first_p50: float
    first_p99: float
    tokens_per_second: float
    apart: float  # share of the requests


def card(name: str, role: Role, *, slower: float = 1.0, costly: bool = False) -> Group:
    """One worker; `slower` divides the rates of what comes to it; `costly`: taking it in is as much as computing it."""
    links = {key: rate / slower for key, rate in LINKS.items()}
    if costly:
        links["import_tokens_per_second"] = STEPS.prefill_tokens_per_second
    sizes = {"max_sequences": 256, "kv_tokens": 800_000, "step_tokens": 2048}
    return Group(accelerator="cuda", name=name, role=role, steps=STEPS, **sizes, **links)  # type: ignore[arg-type]


def drawn(requests: int, rate: float, prompt: int = PROMPT) -> Trace:
    """So many, as a Poisson process."""
    draw, now, arrivals = random.Random(7), 0.0, []
    for _ in range(requests):
        now += draw.expovariate(rate)
        arrivals.append(Arrival(now, prompt, OUTPUT))
    return Trace(arrivals)


def gap(gaps: Counter[int], share: float) -> float:
    """Seconds from token to token that such a share of all tokens had at most."""
    left = share * gaps.total()
    for length in sorted(gaps):
        left -= gaps[length]
        if left <= 0:
            return length / GAPS / 1000
    return 0.0


def figures(outcome: Outcome) -> Figures:
    """Of one run."""
    jobs = outcome.jobs
    first = [first_seconds(job) for job in jobs]
    seconds = max(job.end for job in jobs) - min(job.arrival.seconds for job in jobs)
    tokens = sum(job.arrival.output_tokens for job in jobs)
    gaps = gap(outcome.gaps, 0.5), gap(outcome.gaps, 0.99)
    firsts = percentile(first, 0.5), percentile(first, 0.99)
    return Figures(*gaps, *firsts, tokens / seconds, sum(bool(job.prefiller) for job in jobs) / len(jobs))


def simulated(trace: Trace, *groups: Group, exact: bool = False) -> Figures:
    """A trace on these workers; `exact`: whose rates are known from the start."""
    return figures(Simulation(FleetFile(groups=groups), trace, Policy(), Options(exact=exact)).run())


def rows(requests: int, load: float) -> list[Row]:
    """Apart beside together; and the share that placement separates where it should not."""
    trace = drawn(requests, load * MOST_REQUESTS)
    together = simulated(trace, card("one", "both"), card("two", "both"))
    decode = card("decode", "decode")
    apart = simulated(trace, card("prefill", "prefill"), decode)
    units = {"tokens_per_second": "tok/s", "apart": "ratio"}
    found = [
        compare(f"apart_{name}", ours, units.get(name, "s"), "together", theirs)
        for name, ours, theirs in zip(Figures._fields, apart, together, strict=True)
    ]
    calm = simulated(drawn(requests // 10, 0.01), card("prefill", "prefill"), decode)
    slow = card("decode", "decode", slower=1000)
    far = simulated(drawn(requests // 10, 1.0), card("prefill", "prefill"), slow, exact=True)
    short = simulated(drawn(requests, load * MOST_REQUESTS, 128), card("prefill", "prefill"), decode)
    for name, each in (("alone", calm), ("slow_link", far), ("short", short)):
        found.append(compare(f"apart_share_{name}", each.apart, "ratio"))
    costly = simulated(trace, card("prefill", "prefill"), card("decode", "decode", costly=True))
    found.append(compare("apart_share_costly", costly.apart, "ratio"))
    for name in ("gap_p99", "tokens_per_second"):
        ours, theirs = getattr(costly, name), getattr(together, name)
        found.append(compare(f"apart_costly_{name}", ours, units.get(name, "s"), "together", theirs))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--requests", type=positive, default=3000, help="of the trace (default: 3000)")
    parser.add_argument("--load", type=above_zero, default=0.7, help="share of what both workers can do (default: 0.7)")
    options = parser.parse_args(arguments)
    publish(rows(options.requests, options.load), options.json)
    return 0


if __name__ == "__main__":
    run(main)
