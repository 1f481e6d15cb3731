"""`polyfleet config schema | check`: help with the YAML file."""

from pathlib import Path

import click

from polyfleet.cli.config import config_schema, load_config
from polyfleet.cli.options import FILE, examples
from polyfleet.cli.output import out, print_json


@click.group()
def config() -> None:
    """Help with the configuration file."""


@config.command(epilog=examples("polyfleet config schema > polyfleet.schema.json"))
def schema() -> None:
    """Print the JSON schema of the configuration file."""
    print_json(config_schema())


@config.command(epilog=examples("polyfleet config check polyfleet.yaml"))
@click.argument("file", type=FILE)
def check(file: Path) -> None:
    """Say whether FILE is a valid configuration; exit code 2 when it is not."""
    deployments = load_config(file).deployments
    out.print(f"{file} is valid: {len(deployments)} deployment(s).")
