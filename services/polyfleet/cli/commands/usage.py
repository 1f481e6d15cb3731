"""`polyfleet usage`: what callers used, by day, tenant and model."""

import csv
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from polyfleet.cli.errors import CliError, ExitCode
from polyfleet.cli.options import examples, fleet_options, json_option
from polyfleet.cli.terminal.output import out, print_json, print_table

if TYPE_CHECKING:
    from polyfleet.v1 import fleet_pb2 as pb

GROUPS = ("day", "tenant", "model")
COUNTS = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")


def summed(rows: Iterable["pb.UsageRow"], by: tuple[str, ...]) -> list[dict[str, Any]]:
    """The rows' sums for each combination of `by`, in their order."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in rows:
        key = tuple(getattr(row, name) for name in by)
        sums = found.setdefault(key, dict(zip(by, key, strict=True)) | dict.fromkeys(COUNTS, 0))
        for name in COUNTS:
            sums[name] += getattr(row, name)
    return [found[key] for key in sorted(found)]


def _groups(text: str) -> tuple[str, ...]:
    by = tuple(name.strip() for name in text.split(","))
    if unknown := [name for name in by if name not in GROUPS]:
        raise CliError(f"--by takes some of {', '.join(GROUPS)}, not {unknown[0]!r}.", ExitCode.BAD_INPUT)
    return by


@click.command(
    epilog=examples("polyfleet usage --since 2026-11-01 --by tenant,model", "polyfleet usage --csv > usage.csv")
)
@fleet_options
@click.option("--since", metavar="DAY", default="", help="First day (UTC), as 2026-01-31.  [default: all that is kept]")
@click.option("--until", metavar="DAY", default="", help="Last day.  [default: today]")
@click.option("--tenant", default="", help="This one alone.")
@click.option("--by", default="day,tenant,model", show_default=True, help="What is summed apart.")
@click.option("--csv", "as_csv", is_flag=True, help="Print a table that spreadsheets read.")
@json_option
def usage(
    fleet: str, fleet_token_file: Path | None, since: str, until: str, tenant: str, by: str, as_csv: bool, as_json: bool
) -> None:
    """Say what callers used: requests, and tokens of prompts (of them cached) and answers.

    Requests count when they have ended; those of the last seconds may be missing. It is kept for 400 days.
    """
    from polyfleet.cli.fleet_client import open_fleet

    groups = _groups(by)
    with open_fleet(fleet, fleet_token_file) as client:
        found = summed(client.usage(since, until, tenant), groups)
    if as_json:
        print_json(found)
    elif as_csv:
        writer = csv.DictWriter(sys.stdout, (*groups, *COUNTS), lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)
    elif found:
        columns = tuple(name.upper().replace("_", " ") for name in (*groups, *COUNTS))
        print_table(columns, [tuple(str(value) or "-" for value in each.values()) for each in found])
    else:
        out.print("Nothing was used.", markup=False)
