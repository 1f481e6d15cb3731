"""`polyfleet bench`: load on a served model, bounded, started and read at the scheduler."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from polyfleet.cli.commands.operations import record_of
from polyfleet.cli.errors import CliError, ExitCode
from polyfleet.cli.options import TEXT, examples, fleet_options, json_option, model_option
from polyfleet.cli.terminal.output import command_name, err, out, print_json, print_table
from polyfleet.process.flags import FiniteRange

if TYPE_CHECKING:
    from polyfleet.v1 import operations_pb2 as pb

LOOK_SECONDS = 0.5
COLUMNS = ("BENCHMARK", "MODEL", "STATE", "BEGAN", "SECONDS", "REQUESTS", "ERRORS", "PROBLEM")


@click.group()
def bench() -> None:
    """Benchmarks: bounded load on a model, through a gateway, and what was measured of it.

    They run beside the scheduler, through the gateway that its configuration names. Those of accelerators:
    `polyfleet backends benchmark`.
    """


@bench.command(
    epilog=examples(
        "polyfleet bench start --model chat --concurrency 8 --requests 200",
        "polyfleet bench start --rate 4 --seconds 60 --requests 1000 --no-wait",
    )
)
@model_option
@click.option("--concurrency", type=click.IntRange(1, 64), default=1, show_default=True, help="Clients.")
@click.option("--rate", type=FiniteRange(0, 1000), help="Requests a second in place of clients.")
@click.option("--requests", type=click.IntRange(1, 10_000), default=32, show_default=True, help="At most.")
@click.option("--seconds", type=FiniteRange(0.1, 600), default=60.0, show_default=True, help="None begins later.")
@click.option("--prompt", type=click.Choice(["text", "chat", "ids"]), default="text", show_default=True)
@click.option("--prompt-tokens", type=click.IntRange(1, 32_768), default=128, show_default=True, help="About so many.")
@click.option("--max-tokens", type=click.IntRange(1, 4096), default=64, show_default=True, help="Of each answer.")
@click.option("--seed", type=click.IntRange(0, 2**63), help="Of prompts and arrivals.")
@click.option("--wait/--no-wait", default=True, help="Follow it to its end and print its figures.  [default: --wait]")
@fleet_options
@json_option
def start(wait: bool, fleet: str, fleet_token_file: Path | None, as_json: bool, **plan: Any) -> None:
    """Begin a benchmark. Ctrl-C leaves it running."""
    from polyfleet.cli.fleet_client import open_fleet
    from polyfleet.v1 import operations_pb2 as pb

    with open_fleet(fleet, fleet_token_file) as client:
        job = client.start_benchmark(pb.BenchmarkPlan(**plan))
        while wait and job.state == pb.BENCHMARK_STATE_RUNNING:
            time.sleep(LOOK_SECONDS)
            job = client.benchmark(job.id)
    show(job, as_json)


@bench.command("list", epilog=examples("polyfleet bench list --json"))
@fleet_options
@json_option
def list_benchmarks(fleet: str, fleet_token_file: Path | None, as_json: bool) -> None:
    """List the benchmark that runs and the last that ended."""
    from polyfleet.cli.fleet_client import open_fleet

    with open_fleet(fleet, fleet_token_file) as client:
        found = client.benchmarks()
    if as_json:
        print_json([job_record(each) for each in found])
    elif found:
        print_table(COLUMNS, [job_row(each) for each in found])
    else:
        out.print(f"No benchmarks. `{command_name()} bench start` begins one.", markup=False)


@bench.command("show", epilog=examples("polyfleet bench show bench-0f3a9c2b7d11"))
@click.argument("benchmark_id", type=TEXT)
@fleet_options
@json_option
def show_benchmark(benchmark_id: str, fleet: str, fleet_token_file: Path | None, as_json: bool) -> None:
    """Print how far benchmark BENCHMARK_ID is, or its figures."""
    from polyfleet.cli.fleet_client import open_fleet

    with open_fleet(fleet, fleet_token_file) as client:
        job = client.benchmark(benchmark_id)
    show(job, as_json)


@bench.command(epilog=examples("polyfleet bench cancel bench-0f3a9c2b7d11"))
@click.argument("benchmark_id", type=TEXT)
@fleet_options
def cancel(benchmark_id: str, fleet: str, fleet_token_file: Path | None) -> None:
    """End benchmark BENCHMARK_ID and its requests."""
    from polyfleet.cli.fleet_client import open_fleet

    with open_fleet(fleet, fleet_token_file) as client:
        job = client.cancel_benchmark(benchmark_id)
    out.print(f"{job.id}: {state_name(job)}.", markup=False)


def state_name(job: "pb.Benchmark") -> str:
    """`BENCHMARK_STATE_RUNNING` as `running`."""
    from polyfleet.v1 import operations_pb2 as pb

    names = {value: name.removeprefix("BENCHMARK_STATE_").lower() for name, value in pb.BenchmarkState.items()}
    return names.get(job.state, "unknown")


def job_record(job: "pb.Benchmark") -> dict[str, Any]:
    """One of them for programs."""
    return record_of(job) | {"state": state_name(job)}


def job_row(job: "pb.Benchmark") -> tuple[str, ...]:
    """One of them for people."""
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(job.began_unix_seconds))
    counts = (f"{job.seconds:.1f}" if job.seconds else "-", f"{job.ended} of {job.plan.requests}", str(job.errors))
    return (job.id, job.plan.model or "-", state_name(job), began, *counts, job.problem or "-")


def show(job: "pb.Benchmark", as_json: bool) -> None:
    """The figures, or how it stands. Raises CliError for one that failed."""
    if as_json:
        print_json(job_record(job))
    elif job.rows:
        figures = [(row.name, f"{row.value:.4g}" if row.HasField("value") else "-", row.unit) for row in job.rows]
        print_table(("FIGURE", "VALUE", "UNIT"), figures)
        err.print(f"{job.id}: {job.ended} requests, {job.errors} errors.", markup=False)
    else:
        print_table(COLUMNS, [job_row(job)])
    if job.problem:
        raise CliError(job.problem, ExitCode.FAILED)
