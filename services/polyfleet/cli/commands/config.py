"""`polyfleet config schema | check`: help with the YAML file; `save | load | show`: this user's engine options."""

from pathlib import Path

import click

from polyfleet.cli.config import config_schema, load_config
from polyfleet.cli.errors import sentences
from polyfleet.cli.options import FILE, examples, json_option
from polyfleet.cli.terminal.output import out, print_json, print_table


@click.group()
def config() -> None:
    """Help with the configuration file, and keep engine options for this user."""


@config.command(epilog=examples("polyfleet config schema > polyfleet.schema.json"))
def schema() -> None:
    """Print the JSON schema of the configuration file."""
    print_json(config_schema())


@config.command(epilog=examples("polyfleet config check polyfleet.yaml"))
@click.argument("file", type=FILE)
def check(file: Path) -> None:
    """Say whether FILE is a valid configuration; exit code 2 when it is not."""
    deployments = load_config(file).deployments
    out.print(f"{file} is valid: {len(deployments)} deployment(s).", markup=False)


@config.command(epilog=examples("polyfleet config show --json"))
@json_option
def show(as_json: bool) -> None:
    """Show the backend and engine options that this user's commands start from."""
    from polyfleet.tuning.choice import choice_file, user_choice

    with sentences():
        chosen = user_choice()
    if as_json:
        print_json(chosen)
    elif chosen:
        print_table(("OPTION", "VALUE"), [(key, str(value)) for key, value in chosen.items()])
    else:
        out.print(f"Nothing is chosen in {choice_file()}; every option is auto.", markup=False)


@config.command(epilog=examples("polyfleet config save mine.json"))
@click.argument("file", type=FILE)
def save(file: Path) -> None:
    """Write the options that this user's commands start from to FILE."""
    from polyfleet.tuning.choice import user_choice, write_choice

    with sentences():
        write_choice(file, user_choice())
    out.print(f"Saved to {file}.", markup=False)


@config.command(epilog=examples("polyfleet config load mine.json"))
@click.argument("file", type=FILE)
def load(file: Path) -> None:
    """Make the options in FILE this user's (undo with `polyfleet backends reset`)."""
    from polyfleet.tuning.choice import choice_file, read_choice, write_choice

    with sentences():
        write_choice(choice_file(), read_choice(file))
    out.print(f"Loaded {file}.", markup=False)
