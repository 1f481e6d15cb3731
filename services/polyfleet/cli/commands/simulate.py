"""`polyfleet simulate`: what policies would make of a trace on a fleet."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from polyfleet.cli.errors import CliError, ExitCode
from polyfleet.cli.options import FILE, examples, json_option
from polyfleet.cli.terminal.output import err, out, print_json, print_table
from polyfleet.process.config import ConfigError
from polyfleet.process.flags import FiniteRange

if TYPE_CHECKING:
    from collections.abc import Callable

    from polyfleet.placement.policy import Policy
    from polyfleet.simulator.fleet_file import FleetFile
    from polyfleet.simulator.simulate import Options, Outcome
    from polyfleet.simulator.trace import Trace

ORACLE = "oracle"
COLUMNS = ("POLICY", "GOOD/S", "GOOD", "FIRST P50", "FIRST P95", "TOKEN P50", "TOKEN P95", "HITS", "SHED", "FAILED")


@click.command(
    epilog=examples(
        "polyfleet simulate --policy completion --policy round-robin --load 0.9",
        "polyfleet simulate --fleet fleet.yaml --trace mooncake.jsonl --policy cost.yaml --plot out.svg --json",
    )
)
@click.option("--fleet", "fleet_file", type=FILE, help="YAML file of the workers.  [default: 20 of three speeds]")
@click.option("--trace", "trace_file", type=FILE, help="JSON lines or CSV.  [default: drawn with --seed]")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    default=("completion",),
    show_default=True,
    metavar="NAME|FILE",
    help="A name, a YAML file as `gateway.placement`, or oracle, which knows true speeds; repeatable.",
)
@click.option("--requests", type=click.IntRange(1, 10_000_000), default=1000, show_default=True, help="To draw.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of what is drawn.")
@click.option("--shared-prefixes/--no-shared-prefixes", default=True, show_default=True, help="Of drawn prompts.")
@click.option("--load", type=FiniteRange(0.001, 100), help="Share of the fleet's capacity to replay at.")
@click.option("--rate", type=FiniteRange(0.000001, 1e6), help="Requests a second to replay at.")
@click.option(
    "--deadline",
    type=FiniteRange(0.001, 1e6),
    help="Seconds to the first token; a request that can't have it in time is turned away.  [default: none]",
)
@click.option("--gateways", type=click.IntRange(1, 64), default=1, show_default=True, help="Side by side.")
@click.option("--plot", type=FILE, metavar="FILE.svg", help="Write a picture: goodput and latencies by policy.")
@json_option
def simulate(
    fleet_file: Path | None,
    trace_file: Path | None,
    policies: tuple[str, ...],
    requests: int,
    seed: int,
    shared_prefixes: bool,
    load: float | None,
    rate: float | None,
    deadline: float | None,
    gateways: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Replay a trace against simulated workers with the placement that gateways use."""
    from polyfleet.simulator.figures import capacity, figures
    from polyfleet.simulator.fleet_file import UNLIKE, read_fleet
    from polyfleet.simulator.simulate import Options
    from polyfleet.simulator.trace import draw_trace

    if load is not None and rate is not None:
        raise click.UsageError("Give --load or --rate, not both.")
    if plot and plot.suffix.lower() != ".svg":
        raise click.UsageError("--plot draws SVG: let the file's name end with .svg.")
    with sentences():
        fleet = read_fleet(fleet_file or UNLIKE)
        chosen = {name: policy_of(name) for name in policies}
        trace = _read(trace_file) if trace_file else draw_trace(requests, seed, shared=shared_prefixes)
    most = capacity(fleet, trace)
    if load is not None or rate is not None or not trace_file:
        trace = trace.at_rate(rate or _rate(load or 0.7, most))
    options = Options(gateways=gateways, seed=seed, deadline=deadline or inf)
    outcomes = {name: _replayed(fleet, trace, name, policy, options) for name, policy in chosen.items()}
    found = {name: figures(outcome, trace) for name, outcome in outcomes.items()}
    if as_json:
        print_json({"capacity_per_second": most, "skipped_lines": dict(trace.skipped), "policies": found})
    else:
        _show(found)
    if plot:
        _draw(plot, outcomes, found)


def _draw(plot: Path, outcomes: dict[str, "Outcome"], found: dict[str, dict[str, Any]]) -> None:
    from polyfleet.simulator.plot import picture

    with sentences():
        plot.write_text(picture(outcomes, found), encoding="utf-8")


def _rate(load: float, most: float) -> float:
    if not most:
        problem = "The fleet can serve no such request within the objectives: give --rate instead of --load."
        raise CliError(problem, ExitCode.BAD_INPUT)
    return load * most


def _replayed(fleet: "FleetFile", trace: "Trace", name: str, policy: "Policy", options: "Options") -> "Outcome":
    from polyfleet.simulator.simulate import Simulation

    with _progress(name, len(trace.arrivals)) as progress:
        return Simulation(fleet, trace, policy, options._replace(exact=name == ORACLE)).run(progress)


def policy_of(text: str) -> "Policy":
    """A policy by name, or from a YAML file."""
    from polyfleet.placement.policy import Policy
    from polyfleet.placement.rules import RULES
    from polyfleet.process.config_file import read_config

    if text in (ORACLE, "completion"):
        return Policy()
    if text in RULES:
        return Policy(policy=text)  # type: ignore[arg-type]
    if not Path(text).is_file():
        raise ConfigError(f"{text!r:.80} is no policy and no file; policies: completion, {', '.join(RULES)}, {ORACLE}.")
    return read_config(Path(text), Policy)


def _read(path: Path) -> "Trace":
    from polyfleet.simulator.trace import read_trace

    trace = read_trace(path)
    for reason, count in trace.skipped.most_common(8):
        err.print(f"{path}: {count} line{'s' * (count != 1)} left out: {reason}.", markup=False)
    if not trace.arrivals:
        raise ConfigError(f"{path}: there is no request in it.")
    return trace


@contextmanager
def sentences() -> Iterator[None]:
    """Turn what is wrong with a file into the command's error."""
    try:
        yield
    except OSError as error:
        raise CliError(f"{error.filename}: {error.strerror}.", ExitCode.BAD_INPUT) from None
    except ConfigError as error:
        raise CliError(str(error), ExitCode.BAD_INPUT) from None


@contextmanager
def _progress(name: str, total: int) -> "Iterator[Callable[[int], None]]":
    """A bar on a terminal, nothing elsewhere."""
    if not err.is_terminal:
        yield lambda done: None
        return
    from rich.progress import Progress

    with Progress(console=err, transient=True) as bar:
        task = bar.add_task(name, total=total)
        yield lambda done: bar.update(task, completed=done)


def _show(found: dict[str, dict[str, Any]]) -> None:
    rows = []
    for name, each in found.items():
        hits = each["prefix_hit_ratio"]
        times = [f"{each[f'{what}_seconds_{p}']:.3f}" for what in ("first_token", "token") for p in ("p50", "p95")]
        good = f"{each['goodput_per_second']:.2f}", f"{each['good_ratio']:.1%}"
        rows.append(
            (name, *good, *times, "-" if hits is None else f"{hits:.1%}", str(each["shed"]), str(each["failed"]))
        )
    print_table(COLUMNS, rows)
    out.print("GOOD kept 2 s to the first token and 0.1 s from token to token.", style="dim")
