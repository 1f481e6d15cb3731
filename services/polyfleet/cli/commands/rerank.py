"""`polyfleet rerank`: documents, best first."""

import click

from polyfleet.cli.options import Gateway, examples, gateway_options, json_option, model_option, read_text
from polyfleet.cli.terminal.output import print_json, print_table


@click.command(
    epilog=examples(
        "polyfleet rerank 'what is a panda?' 'a bear of China' 'a kind of bread'",
        "polyfleet rerank 'what is a panda?' --top 3 < lines.txt",
    )
)
@click.argument("query")
@click.argument("documents", metavar="[DOCUMENT]...", nargs=-1)
@model_option
@click.option("--top", type=click.IntRange(1), help="So many of the best; default: all.")
@gateway_options
@json_option
def rerank(
    query: str, documents: tuple[str, ...], model: str | None, top: int | None, as_json: bool, gateway: Gateway
) -> None:
    """Rank DOCUMENTs by how well they answer QUERY; without any, the lines of stdin.

    The model is a cross encoder, or an embedder, whose vectors are compared.
    """
    texts = documents or tuple(line for line in read_text(None, "A document").splitlines() if line.strip())
    with gateway.client() as client:
        done = client.rerank(query, texts, model=model or "", top_n=top or 0)
    if as_json:
        print_json({"results": done.results, "usage": done.usage})
        return
    rows = [(f"{each.relevance_score:.4f}", str(each.index), repr(texts[each.index][:60])) for each in done.results]
    print_table(("SCORE", "INDEX", "DOCUMENT"), rows)
