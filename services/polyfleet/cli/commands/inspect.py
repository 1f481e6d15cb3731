"""`polyfleet inspect`: what a model is and where it fits, before anything is started."""

import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

from polyfleet.cli.errors import CliError, ExitCode
from polyfleet.cli.options import TEXT, examples, json_option
from polyfleet.cli.stack.settings import found
from polyfleet.cli.terminal.output import out, print_json
from polyfleet.process.flags import option_flags, take_options
from polyfleet.wire.options import EngineOptions

if TYPE_CHECKING:
    from polyfleet.engine.fitting import Fit, Site
    from polyfleet.engine.inspection import Inspection

GIB = 2**30
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


class Size(click.ParamType):  # type: ignore[type-arg]  # generic in newer clicks only
    """Bytes, as 80GiB, 24G or 80GB."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number of bytes."""
        match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)\s*([KMGT]?)(i?)(B?)", str(value).strip(), re.IGNORECASE)
        if match is None:
            self.fail(f"{value!r} is no size: write 80GiB, say", param, ctx)
        unit = (match[2] + ("" if match[3] else match[4])).upper() if match[2] else ""
        size = int(float(match[1]) * UNITS[unit])
        if size < 1:
            self.fail("must be 1 byte or more", param, ctx)
        return size


def _print_schema(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        import msgspec

        from polyfleet.engine.inspection import Inspection

        print_json(msgspec.json.schema(Inspection))
        context.exit()


@click.command(
    epilog=examples(
        "polyfleet inspect ./model.gguf",
        "polyfleet inspect ./folder --accelerator cuda --memory 80GiB --context-length 32768",
        "polyfleet inspect ./folder --json",
    )
)
@click.argument("source", metavar="PATH_OR_NAME", type=TEXT)
@click.option("--accelerator", metavar="NAME", help="Ask of it, which need not be here; or of a device, cuda:1.")
@click.option("--memory", type=Size(), help="As if so much of a device were free.  [default: what is]")
@option_flags()
@json_option
@click.option(
    "--schema", is_flag=True, is_eager=True, expose_value=False, callback=_print_schema, help="Print --json's schema."
)
def inspect(source: str, accelerator: str | None, memory: int | None, as_json: bool, **flags: Any) -> None:
    """Tell what the model at PATH_OR_NAME is, and how it fits each device of this machine. Loads nothing.

    Where a device is named, by --accelerator or --memory, and it does not fit, the exit code is 1.
    """
    from polyfleet.engine.inspection import inspect_model
    from polyfleet.models.errors import ModelFileError
    from polyfleet.text.answer.formats import find_tool_format

    def tool_calls(templates: str) -> str:
        return find_tool_format(templates).name if templates else ""

    options = EngineOptions(**take_options(flags))  # type: ignore[arg-type]
    sites = _sites(accelerator, memory or 0)
    try:
        seen = inspect_model(found(source), options, sites, tool_calls)
    except ModelFileError as error:
        raise CliError(f"The model {error}.", ExitCode.BAD_INPUT) from None
    if as_json:
        print_json(seen)
    else:
        _show(seen)
    if (accelerator or memory) and all(each.problem for each in seen.fits):
        raise click.exceptions.Exit(ExitCode.FAILED)


def _sites(accelerator: str | None, memory: int) -> "tuple[Site, ...]":
    """Those that are asked for. Raises CliError."""
    from polyfleet.backends import BackendUnavailable
    from polyfleet.engine.fitting import site_here, site_imagined
    from polyfleet.engine.inspection import sites_here

    try:
        if accelerator is None:
            return sites_here(memory)
        if memory and ":" not in accelerator:
            return (site_imagined(accelerator, memory),)
        return (site_here(accelerator, memory),)
    except BackendUnavailable as error:
        hint = "" if memory else "; give --memory to ask of one that is not here"
        raise CliError(f"{error}{hint}.", ExitCode.BAD_INPUT) from None
    except ValueError as error:
        raise CliError(f"{error}.", ExitCode.BAD_INPUT) from None


def _show(seen: "Inspection") -> None:
    formats = ", ".join(f"{name} {count / seen.parameters:.0%}" for name, count in seen.formats.items())
    kind = "ranks documents" if seen.cross_encoder else "makes embeddings" if seen.embeds_only else "generates"
    method = f", quantised by {seen.quantisation}" if seen.quantisation else ""
    lines = [f"{seen.name}: {seen.architecture}, {seen.parameters:,} parameters ({formats}{method}); {kind}"]
    licence = seen.licence or "not stated"
    lines += [f"context {seen.context_length}, vocabulary {seen.vocabulary_size}, licence {licence}", _tokenizer(seen)]
    for each in seen.memory:
        per = "sequence" if each.kind == "state" else "token"
        window = f", the last {each.window} tokens" if each.window else ""
        lines.append(f"remembers: {each.layers} x {each.kind}, {each.numbers} numbers a {per}{window}")
    for line in [*lines, *(line for fit in seen.fits for line in fit_lines(fit))]:
        out.print(line, markup=False)


def _tokenizer(seen: "Inspection") -> str:
    known = seen.tokenizer
    if known is None:
        return "no tokenizer: it takes token ids"
    template = "a chat template" if known.chat_template else "no chat template"
    tools = " and another for tools" if known.tool_template else ""
    calls = f", calls tools as {known.tool_calls}" if known.tool_calls else ""
    return f"tokenizer {known.kind} of {known.tokens} tokens, {template}{tools}{calls}"


def fit_lines(fit: "Fit | SimpleNamespace") -> list[str]:
    """How a model fits a device, for people; a Fit, or what its JSON says."""
    room = f"{fit.device}, {fit.memory_bytes / GIB:.1f} GiB"
    if fit.problem:
        return [f"{room}: does not fit: {fit.problem}", *(f"    would fit: {change}" for change in fit.changes)]
    state = f", state {fit.state_bytes_per_sequence} bytes a sequence" if fit.state_bytes_per_sequence else ""
    sizes = f"weights {fit.weight_bytes / GIB:.2f} GiB, KV {fit.kv_bytes_per_token} bytes a token{state}"
    holds = f"context {fit.context_length}, {fit.max_sequences} sequences, a pool of {fit.kv_cache_tokens} tokens"
    dense = (
        f"; {fit.dequantised} quantised matrices are kept dense: {fit.dequantised_because}" if fit.dequantised else ""
    )
    dtype = f" in {fit.dtype}" if fit.dtype else ""
    return [f"{room}: {fit.executor}{dtype}, {sizes}, {holds}{dense}"]
