"""`polyfleet inspect`: what a model is and where it fits, before anything is started."""

import click

from polyfleet.cli.errors import CliError, ExitCode
from polyfleet.cli.options import TEXT, examples, json_option
from polyfleet.cli.stack.settings import found
from polyfleet.cli.terminal.output import out, print_json

GIB = 2**30


@click.command(epilog=examples("polyfleet inspect ./model.gguf", "polyfleet inspect ./folder --json"))
@click.argument("source", metavar="PATH_OR_NAME", type=TEXT)
@json_option
def inspect(source: str, as_json: bool) -> None:
    """Tell what the model at PATH_OR_NAME is, and how it fits each accelerator of this machine. Loads nothing."""
    from polyfleet.engine.inspection import inspect_model
    from polyfleet.models.errors import ModelFileError

    try:
        seen = inspect_model(found(source))
    except ModelFileError as error:
        raise CliError(f"The model {error}.", ExitCode.BAD_INPUT) from None
    if as_json:
        print_json(seen)
        return
    formats = ", ".join(f"{name} {count / seen.parameters:.0%}" for name, count in seen.formats.items())
    kind = "makes embeddings" if seen.embeds_only else "generates"
    text = "" if seen.tokenizer else ", without a tokenizer"
    out.print(
        f"{seen.name}: {seen.architecture}, {seen.parameters:,} parameters ({formats}); {kind}{text}", markup=False
    )
    out.print(f"context {seen.context_length}, vocabulary {seen.vocabulary_size}")
    for fit in seen.fits:
        if fit.problem:
            out.print(f"{fit.device}: does not fit: {fit.problem}", markup=False)
            continue
        sizes = f"weights {fit.weight_bytes / GIB:.2f} GiB, KV {fit.kv_bytes_per_token} bytes a token"
        room = f"context {fit.context_length}, {fit.max_sequences} sequences, a pool of {fit.kv_cache_tokens} tokens"
        out.print(f"{fit.device}: {fit.executor}, {sizes}, {room}")
