"""`polyfleet deploy --check`: how a model would fit the fleet's devices, as one of its workers sees it."""

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING

import click

from polyfleet.cli.commands.inspect import fit_lines
from polyfleet.cli.errors import ExitCode
from polyfleet.cli.terminal.output import out, print_json

if TYPE_CHECKING:
    from polyfleet.cli.fleet_client import FleetClient
    from polyfleet.v1 import fleet_pb2 as pb


def check(client: "FleetClient", wanted: "pb.ModelDeployment", *, as_json: bool) -> None:
    """Say it. Raises click's Exit where it fits no device that is known."""
    answer = client.check_model(wanted)
    found = json.loads(answer.inspection)
    if as_json:
        print_json(found | {"worker": answer.worker_id})
    else:
        parameters, context = f"{found['parameters']:,} parameters", f"context {found['context_length']}"
        out.print(f"{found['name']}: {found['architecture']}, {parameters}, {context}", markup=False)
        for fit in found["fits"]:
            for line in fit_lines(SimpleNamespace(**fit)):
                out.print(line, markup=False)
        if not found["fits"]:
            out.print("No worker has told how much memory such a device has.", markup=False)
    if found["fits"] and all(fit["problem"] for fit in found["fits"]):
        raise click.exceptions.Exit(ExitCode.FAILED)
