"""`polyfleet explain`: which worker a prompt goes to now, and why not to the others."""

import click

from polyfleet.cli.errors import CliError, ExitCode
from polyfleet.cli.options import Gateway, examples, gateway_options, json_option, model_option, read_text
from polyfleet.cli.terminal.output import out, print_json, print_table


@click.command(epilog=examples("polyfleet explain 'Hello, world'", "polyfleet explain --json - < prompt.txt"))
@click.argument("text", required=False)
@model_option
@gateway_options
@json_option
def explain(
    text: str | None,
    model: str | None,
    as_json: bool,
    gateway: Gateway,
) -> None:
    """Send TEXT for one token, and show what its placement was decided by; `-` or nothing reads stdin."""
    prompt = read_text(text, "The text")
    with gateway.client() as client:
        placements = client.explain(prompt, model=model or "", max_tokens=1)
    if not placements:
        raise CliError("The gateway gives no reasons: it is of an older version.", ExitCode.FAILED)
    found = placements[-1]
    if as_json:
        print_json(found)
        return
    out.print(f"{found['worker_id']} was chosen by policy {found['policy']}.", markup=False)
    columns = ("WORKER", "FIRST TOKEN S", "TOKEN S", "ALL S", "CACHED", "SCORE")
    rows = [tuple(str(value) for value in each.values()) for each in found["workers"]]
    print_table(columns, rows)
    if prefill := found.get("prefill"):
        where = f"at {prefill['worker_id']}" if prefill["worker_id"] else "there, too"
        out.print(f"Its prompt is computed {where} ({prefill['decision']}).", markup=False)
    for each in found["dropped"]:
        out.print(f"{each['worker_id']}: {each['reason']}", markup=False)
    if found["more"]:
        out.print(f"and {found['more']} more", style="dim")
