"""What placement makes of unlike workers, in the simulator: goodput against an oracle and simpler rules, prefix hits.

    python -m bench.fleet [--requests N] [--json FILE]

The fleet is `simulator/unlike.yaml`; traces are drawn with and without shared beginnings and replayed at 0.7 and 0.95
of the capacity. Goodput counts requests that kept 2 s to the first token and 0.1 s from token to token; a load is
sustained where 95 % of them do.
"""

from collections.abc import Iterator, Sequence
from math import inf
from typing import Any

from bench.command import parser_of, positive, run
from bench.report import Row, compare, publish

from polyfleet.cli.commands.simulate import policy_of
from polyfleet.simulator.figures import capacity, figures
from polyfleet.simulator.fleet_file import UNLIKE, read_fleet
from polyfleet.simulator.gateways import FIRST_SECONDS
from polyfleet.simulator.simulate import Options, Simulation
from polyfleet.simulator.trace import Trace, draw_trace

LOADS, OVERLOAD = (0.7, 0.95), 1.2
KEPT, HALVINGS = 0.95, 6
PEERS = ("oracle", "prefix-queue", "least-requests", "round-robin")


def replayed(
    trace: Trace, policy: str, gateways: int = 1, *, shared: bool = True, deadline: float = inf
) -> dict[str, Any]:
    """The figures of one run."""
    options = Options(gateways=gateways, shared=shared, exact=policy == "oracle", deadline=deadline)
    return figures(Simulation(read_fleet(UNLIKE), trace, policy_of(policy), options).run(), trace)


def goodput_rows(requests: int) -> Iterator[Row]:
    """Completion beside each peer, on each trace at each load."""
    for name, shared in (("own", False), ("shared", True)):
        drawn = draw_trace(requests, 1, shared=shared)
        most = capacity(read_fleet(UNLIKE), drawn)
        for load in LOADS:
            trace = drawn.at_rate(load * most)
            ours = replayed(trace, "completion")
            for peer in PEERS:
                theirs = replayed(trace, peer)
                figure = f"goodput_{name}_{load:g}"
                yield compare(figure, ours["goodput_per_second"], "1/s", peer, theirs["goodput_per_second"])


def sustained(drawn: Trace, policy: str) -> float:
    """The highest load, as a share of the capacity, at which KEPT of the requests keep the objectives."""
    most, low, high = capacity(read_fleet(UNLIKE), drawn), 0.0, 2.0
    for _ in range(HALVINGS):
        load = (low + high) / 2
        kept = replayed(drawn.at_rate(load * most), policy)["good_ratio"] >= KEPT
        low, high = (load, high) if kept else (low, load)
    return low


def sustained_rows(requests: int) -> Iterator[Row]:
    """The load that completion sustains beside each peer's."""
    for name, shared in (("own", False), ("shared", True)):
        drawn = draw_trace(requests, 1, shared=shared)
        ours = sustained(drawn, "completion")
        for peer in PEERS:
            yield compare(f"sustained_{name}", ours, "load", peer, sustained(drawn, peer))


def shed_rows(requests: int) -> Iterator[Row]:
    """Goodput beyond what the fleet can do, as a share of that, where requests have a deadline and where they don't."""
    drawn = draw_trace(requests, 1, shared=False)
    most = capacity(read_fleet(UNLIKE), drawn)
    for load in (LOADS[1], OVERLOAD):
        trace = drawn.at_rate(load * most)
        with_it, without = (
            replayed(trace, "completion", deadline=each)["goodput_per_second"] / most for each in (FIRST_SECONDS, inf)
        )
        yield compare(f"goodput_deadline_{load:g}", with_it, "capacity", "no deadline", without)


def hit_rows(requests: int) -> Iterator[Row]:
    """Prefix hits of eight gateways beside those of one, with and without news of each other's prompts."""
    trace = draw_trace(requests, 1, shared=True)
    trace = trace.at_rate(LOADS[0] * capacity(read_fleet(UNLIKE), trace))
    one = replayed(trace, "completion")["prefix_hit_ratio"]
    yield compare("prefix_hits_1", one, "ratio")
    for name, shared in (("shared", True), ("separate", False)):
        eight = replayed(trace, "completion", 8, shared=shared)["prefix_hit_ratio"]
        yield compare(f"prefix_hits_8_{name}", eight, "ratio", "1 gateway", one)


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--requests", type=positive, default=3000, help="of each trace (default: 3000)")
    options = parser.parse_args(arguments)
    rows = [*goodput_rows(options.requests), *sustained_rows(options.requests), *hit_rows(options.requests)]
    rows += shed_rows(options.requests)
    publish(rows, options.json)
    return 0


if __name__ == "__main__":
    run(main)
