"""`polyfleet tokenize`: a text's tokens, as a model reads them."""

import click

from polyfleet.cli.options import Gateway, examples, gateway_options, json_option, model_option, read_text
from polyfleet.cli.terminal.output import out, print_json, print_table


@click.command(epilog=examples("polyfleet tokenize 'Hello, world'", "polyfleet tokenize --chat --json 'Hello!'"))
@click.argument("text", required=False)
@model_option
@click.option("--chat", is_flag=True, help="TEXT is a user's message in the model's chat template.")
@click.option("--special-tokens/--no-special-tokens", default=None, help="Around a text, as `generate` does.")
@gateway_options
@json_option
def tokenize(
    text: str | None,
    model: str | None,
    chat: bool,
    special_tokens: bool | None,
    as_json: bool,
    gateway: Gateway,
) -> None:
    """Show the tokens of TEXT as the model reads them; `-` or nothing reads stdin."""
    if chat and special_tokens is not None:
        raise click.UsageError("--chat's template writes its own special tokens: leave --special-tokens out.")
    found = read_text(text, "The text")
    with gateway.client() as client:
        tokens = client.tokenize(
            None if chat else found,
            messages=[{"role": "user", "content": found}] if chat else None,
            model=model or "",
            add_special_tokens=special_tokens,
        )
    if as_json:
        print_json({"token_ids": tokens.token_ids, "pieces": tokens.pieces}, indent=0)
        return
    print_table(("ID", "PIECE"), [(str(i), piece) for i, piece in zip(tokens.token_ids, tokens.pieces, strict=True)])
    count = len(tokens.token_ids)
    out.print(f"{count} token{'s' * (count != 1)}", style="dim")
