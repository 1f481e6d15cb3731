"""`polyfleet backends benchmark`: how fast the accelerators of this machine compute what a decoder computes."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from polyfleet.cli.errors import CliError, ExitCode, sentence, sentences
from polyfleet.cli.options import FILE, examples, json_option
from polyfleet.cli.terminal.output import err, print_json, print_table, spinner
from polyfleet.process.flags import FiniteRange, OptionType
from polyfleet.wire.options import OPTIONS

ALL = "all"
LISTS = ("--batch-sizes", "--seq-lengths", "--hidden-sizes")
LIST = "With commas or spaces between."


class SpacedLists(click.Command):
    """Takes `--batch-sizes 1 4 8` as `--batch-sizes 1,4,8`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click, which would take but one value."""
        return super().parse_args(ctx, joined(args))


def joined(arguments: Iterable[str]) -> list[str]:
    """The arguments with the values that follow one of the LISTS in one word."""
    words: list[str] = []
    within, begun = False, False  # one of the LISTS; which has a value
    for argument in arguments:
        if argument.startswith("-"):
            name, given, _ = argument.partition("=")
            within, begun = name in LISTS, bool(given)
        if within and begun and not argument.startswith("-"):
            words[-1] += f",{argument}"
            continue
        begun = begun or not argument.startswith("-")
        words.append(argument)
    return words


@click.command(
    cls=SpacedLists,
    epilog=examples(
        "polyfleet backends benchmark --duration 30",
        "polyfleet backends benchmark --iterations 50 --batch-sizes 1 4 8 --dtype float16 --output results.json",
    ),
)
@click.option("--backend", "names", multiple=True, help="A backend to measure; repeatable. Default: all, as `all`.")
@click.option("--duration", default=10.0, show_default=True, type=FiniteRange(0.1, 3600), help="Seconds each.")
@click.option("--iterations", default=20, show_default=True, type=click.IntRange(1, 100000), help="Runs an operation.")
@click.option("--batch-sizes", default="1,8", show_default=True, help=LIST)
@click.option("--seq-lengths", default="128,512", show_default=True, help=LIST)
@click.option("--hidden-sizes", default="768", show_default=True, help=LIST)
@click.option("--dtype", type=OptionType(OPTIONS["dtype"]), default="auto", show_default=True, help="To compute in.")
@click.option("--output", type=FILE, help="Write all statistics as JSON.")
@json_option
def benchmark(
    names: tuple[str, ...],
    duration: float,
    iterations: int,
    batch_sizes: str,
    seq_lengths: str,
    hidden_sizes: str,
    dtype: str,
    output: Path | None,
    as_json: bool,
) -> None:
    """Time what a decoder computes (matmul, norm, gated MLP, attention) on each backend."""
    from polyfleet.backends import BackendRegistry
    from polyfleet.tuning.benchmark import BenchmarkOptions, run

    with sentences():
        for name in {each.strip().lower() for each in names} - {"auto", ALL}:
            BackendRegistry.known(name)
    batches, lengths, hidden = _sizes(batch_sizes), _sizes(seq_lengths), _sizes(hidden_sizes)
    options = BenchmarkOptions(duration, iterations, batches, lengths, hidden, dtype)
    with spinner("measuring …"):
        results: dict[str, Any] = run(options, [] if ALL in names else list(names))
    if as_json:
        print_json(results)
    else:
        _show_benchmark(results)
    with sentences():  # after they are shown: a file that can't be written must not take them away
        if output is not None:
            output.write_text(json.dumps(results, indent=2) + "\n")
    failures = ["error" in each for each in results["backends"].values()]
    if all(failures) or (names and ALL not in names and any(failures)):  # what was asked for by name must work
        sys.exit(ExitCode.FAILED)


def _show_benchmark(results: dict[str, Any]) -> None:
    rows = []
    for name, found in results["backends"].items():
        if "error" in found:
            err.print(sentence(ValueError(found["error"])), markup=False)
        for warning in found.get("warnings", ()):
            err.print(sentence(ValueError(warning)), markup=False)
        for row in found.get("rows", ()):
            speed = (f"{row['median_ms']:.3f}", f"{row['p95_ms']:.3f}", f"{row['gflops']:.1f}")
            rows.append((name, found["dtype"], row["operation"], *speed))
    if rows:
        print_table(("BACKEND", "DTYPE", "OPERATION", "MEDIAN MS", "P95 MS", "GFLOP/S"), rows)


def _sizes(text: str) -> tuple[int, ...]:
    parts = [each.strip() for each in text.replace(" ", ",").split(",") if each.strip()]
    if not parts or not all(each.isdecimal() and len(each) <= 7 and 0 < int(each) <= 1_000_000 for each in parts):
        raise CliError(f"{text!r} is no list of sizes: write numbers from 1 on, such as 1,4,8.", ExitCode.BAD_INPUT)
    return tuple(int(each) for each in parts)
