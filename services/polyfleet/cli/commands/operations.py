"""`polyfleet devices | logs | requests`: what operators look at when something is wrong."""

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from polyfleet.cli.options import examples, fleet_options, json_option
from polyfleet.cli.terminal.output import out, print_json, print_table

if TYPE_CHECKING:
    from polyfleet.v1 import operations_pb2 as pb

GIB = 2**30


def record_of(message: Any) -> dict[str, Any]:
    """A message for `--json`: all that it says, under the names of its proto; numbers stay numbers."""
    from google.protobuf.json_format import MessageToDict

    record: dict[str, Any] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    for field in message.DESCRIPTOR.fields:
        if field.name in record and field.cpp_type == field.CPPTYPE_UINT64 and not field.is_repeated:
            record[field.name] = int(record[field.name])
    return record


def health_name(state: "pb.DeviceState") -> str:
    """`DEVICE_HEALTH_HEALTHY` as `healthy`, and what this version does not know as `unknown`."""
    from polyfleet.v1 import operations_pb2 as pb

    names = {value: name.removeprefix("DEVICE_HEALTH_").lower() for name, value in pb.DeviceHealth.items()}
    return names.get(state.health, "unknown")


def device_row(device: "pb.FleetDevice") -> tuple[str, ...]:
    """One device for people; `-` where its vendor withholds a reading."""
    state = device.state

    def told(name: str, text: str, scale: float = 1.0) -> str:
        return text.format(getattr(state, name) * scale) if state.HasField(name) else "-"  # type: ignore[arg-type]

    memory = "-"
    if state.HasField("memory_total_bytes"):
        memory = f"{state.memory_used_bytes / GIB:.1f} of {state.memory_total_bytes / GIB:.1f} GiB"
    return (
        device.host,
        f"{state.accelerator} {state.index}",
        state.name or "-",
        health_name(state) + (f": {state.reason}" if state.reason else ""),
        memory,
        told("utilization_ratio", "{:.0f} %", 100),
        told("temperature_celsius", "{:.0f} °C"),
        told("power_watts", "{:.0f} W"),
        ", ".join(device.worker_ids),
    )


@click.command(epilog=examples("polyfleet devices", "polyfleet devices --json"))
@fleet_options
@json_option
def devices(fleet: str, fleet_token_file: Path | None, as_json: bool) -> None:
    """List the devices that workers are on, with their last readings.

    Simulated workers have none; those of `polyfleet backends` are this machine's.
    """
    from polyfleet.cli.fleet_client import open_fleet

    with open_fleet(fleet, fleet_token_file) as client:
        found = client.devices()
    if as_json:
        print_json([record_of(each) | {"state": record_of(each.state)} for each in found])
    elif found:
        columns = ("HOST", "DEVICE", "PRODUCT", "HEALTH", "MEMORY", "USE", "HEAT", "POWER", "WORKERS")
        print_table(columns, [device_row(each) for each in found])
    else:
        out.print("No worker has told of its devices.", markup=False)


@click.command(epilog=examples("polyfleet logs worker-0f3a9c2b7d11 --lines 20"))
@click.argument("worker_id")
@click.option("--lines", type=click.IntRange(1, 1000), default=100, show_default=True, help="The last ones.")
@fleet_options
def logs(worker_id: str, lines: int, fleet: str, fleet_token_file: Path | None) -> None:
    """Print the last lines that worker WORKER_ID and its engine have logged: JSON, one a line."""
    from polyfleet.cli.fleet_client import open_fleet

    with open_fleet(fleet, fleet_token_file) as client:
        found = client.log_lines(worker_id, lines)
    for line in found:
        click.echo(line)


REQUEST_COLUMNS = (
    "BEGAN",
    "REQUEST",
    "TENANT",
    "MODEL",
    "END",
    "SECONDS",
    "FIRST",
    "PROMPT",
    "TOKENS",
    "WORKERS",
    "PREFILL",
)


def request_row(record: "pb.RequestRecord") -> tuple[str, ...]:
    """One request for people."""
    first = f"{record.first_token_seconds:.2f}" if record.HasField("first_token_seconds") else "-"
    return (
        datetime.fromtimestamp(record.began_unix_seconds).strftime("%H:%M:%S"),
        record.request_id,
        record.tenant or "-",
        record.model or "-",
        record.code or "runs",
        f"{record.seconds:.2f}",
        first,
        f"{record.prompt_tokens} ({record.cached_tokens})",
        str(record.completion_tokens),
        " → ".join(record.worker_ids) or "-",
        record.prefill or "-",
    )


@click.command(epilog=examples("polyfleet requests --tenant team-a --last 20", "polyfleet requests --json"))
@fleet_options
@click.option("--tenant", default="", help="Of this one alone.")
@click.option("--model", default="", help="Of this one alone.")
@click.option("--last", type=click.IntRange(1, 1000), default=50, show_default=True, help="Of those that have ended.")
@json_option
def requests(fleet: str, fleet_token_file: Path | None, tenant: str, model: str, last: int, as_json: bool) -> None:
    """List the requests that run and the last that ended, as gateways told of them within two seconds.

    Never a prompt, never an answer. With --json, `placement` says why the last worker was chosen, where that was kept.
    """
    from polyfleet.cli.fleet_client import open_fleet

    with open_fleet(fleet, fleet_token_file) as client:
        found = client.requests(tenant, model, last)
    records = [*found.running, *found.ended]
    if as_json:
        told = [record_of(each) for each in records]
        print_json([each | {"placement": json.loads(each["placement"] or "null")} for each in told])
    elif records:
        print_table(REQUEST_COLUMNS, [request_row(each) for each in records])
    else:
        out.print("No gateway has told of requests.", markup=False)
