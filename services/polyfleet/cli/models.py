"""`polyfleet models`: what the gateway serves."""

from pathlib import Path

import click

from polyfleet.cli.options import examples, gateway_options, json_option, open_client
from polyfleet.cli.output import out, print_json, print_table


@click.command(epilog=examples("polyfleet models --gateway 127.0.0.1:50051 --json"))
@gateway_options
@json_option
def models(gateway: str, api_key_file: Path | None, tls: bool, ca_file: Path | None, as_json: bool) -> None:
    """List the models that are served or being loaded."""
    with open_client(gateway, api_key_file, tls, ca_file) as client:
        found = client.models()
    if as_json:
        print_json(found)
    elif found:
        columns = ("MODEL", "READY WORKERS", "CONTEXT", "VOCABULARY", "ACCELERATORS")
        rows = [
            (m.name, str(m.ready_workers), str(m.context_length), str(m.vocabulary_size), ", ".join(m.accelerators))
            for m in found
        ]
        print_table(columns, rows)
    else:
        out.print("No models. `polyfleet deploy NAME PATH` serves one.")
