"""`polyfleet embed`: vectors of texts."""

import click

from polyfleet.cli.options import Gateway, examples, gateway_options, json_option, model_option, read_text
from polyfleet.cli.terminal.output import print_json, print_table

SHOWN_VALUES = 6  # of a vector, for people


@click.command(epilog=examples("polyfleet embed 'first text' 'second text'", "polyfleet embed --json < page.txt"))
@click.argument("texts", metavar="[TEXT]...", nargs=-1)
@model_option
@click.option("--pooling", type=click.Choice(["mean", "last", "cls"]), help="Over tokens; default: the model's own.")
@click.option("--dimensions", type=click.IntRange(1), help="First values of each vector that are kept; default: all.")
@click.option("--normalize", is_flag=True, help="Scale each vector to length 1.")
@gateway_options
@json_option
def embed(
    texts: tuple[str, ...],
    model: str | None,
    pooling: str | None,
    dimensions: int | None,
    normalize: bool,
    as_json: bool,
    gateway: Gateway,
) -> None:
    """Turn each TEXT into a vector; `-` or nothing reads one from stdin. --json prints all their values."""
    inputs = [read_text(text, "A text") for text in texts or (None,)]
    with gateway.client() as client:
        wanted = {"pooling": pooling or "", "dimensions": dimensions or 0}
        done = client.embed(inputs, model=model or "", normalize=normalize, **wanted)  # type: ignore[arg-type]
    if as_json:
        print_json({"embeddings": done.vectors, "usage": done.usage}, indent=0)
        return
    rows = [
        (repr(text[:40]), str(len(vector)), " ".join(f"{value:.4f}" for value in vector[:SHOWN_VALUES]))
        for text, vector in zip(inputs, done.vectors, strict=True)
    ]
    print_table(("TEXT", "VALUES", "BEGINNING"), rows)
