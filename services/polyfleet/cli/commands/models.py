"""`polyfleet models`: what the gateway serves."""

from typing import TYPE_CHECKING

import click

from polyfleet.cli.options import Gateway, examples, gateway_options, json_option
from polyfleet.cli.terminal.output import command_name, out, print_json, print_table

if TYPE_CHECKING:
    from polyfleet.client import Model


def model_row(model: "Model") -> tuple[str, ...]:
    """One model for people."""
    numbers = (model.ready_workers, model.context_length, model.vocabulary_size)
    defaults = ", ".join(f"{name} {value:g}" for name, value in model.sampling_defaults.items())
    return model.name, *map(str, numbers), ", ".join(model.accelerators), defaults


@click.command(epilog=examples("polyfleet models --gateway 127.0.0.1:50051 --json"))
@gateway_options
@json_option
def models(gateway: Gateway, as_json: bool) -> None:
    """List the models that somebody wants, and why one is not served now."""
    with gateway.client() as client:
        found = client.models()
    if as_json:
        print_json(found)
    elif found:
        columns = ("MODEL", "READY WORKERS", "CONTEXT", "VOCABULARY", "ACCELERATORS", "SAMPLING DEFAULTS")
        print_table(columns, [model_row(model) for model in found])
        for model in found:
            if model.reason:
                out.print(model.reason, markup=False)
    else:
        out.print(f"No models. `{command_name()} deploy NAME PATH` serves one.", markup=False)
