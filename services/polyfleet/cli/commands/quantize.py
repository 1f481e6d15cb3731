"""`polyfleet quantize`: a model's folder written anew in 4 or 8 bits, with what that costs of its quality."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from polyfleet.cli.errors import CliError, ExitCode
from polyfleet.cli.offline import sentence, text_of
from polyfleet.cli.options import examples, json_option
from polyfleet.cli.terminal.output import err, out, print_json
from polyfleet.wire.options import EngineOptions

if TYPE_CHECKING:
    from polyfleet.engine.engine import Engine

WINDOW, DRAWS = 512, 64  # tokens that are read together, and of a step
MOST_TOKENS = 8192  # of a text
BITS = {"int4": 4, "int8": 8}


@click.command(
    epilog=examples("polyfleet quantize ./model ./model-int4 --to int4", "polyfleet quantize A B --to int8 --json")
)
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("destination", type=click.Path(path_type=Path))
@click.option("--to", "form", type=click.Choice(list(BITS)), required=True, help="Bits of a weight.")
@click.option(
    "--group",
    type=click.IntRange(min=32),
    metavar="COLUMNS",
    help="Columns that share a scale, a multiple of 32; without it 128, or 64 or 32 where that does not divide rows.",
)
@click.option(
    "--text",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help=f"UTF-8 text for the perplexities, of which {MOST_TOKENS} tokens are read; without it a short one of its own.",
)
@click.option("--device", default="auto", show_default=True, help="What computes the perplexities.")
@json_option
def quantize(
    source: Path, destination: Path, form: str, group: int | None, text: Path | None, device: str, as_json: bool
) -> None:
    """Write the Hugging Face folder SOURCE to DESTINATION with the matrices of its layers as int4 or int8.

    The result is in the pack-quantized format of compressed-tensors, which vLLM and transformers read too. Tells the
    perplexity of a text before and after: how much worse the model guesses its next tokens.
    """
    if group and group % 32:
        raise CliError(f"--group must be a multiple of 32, not {group}.", ExitCode.BAD_INPUT)
    if not source.is_dir():
        reason = "GGUF files are quantised already" if source.is_file() else "there is no such folder"
        raise CliError(f"{source} is no Hugging Face folder: {reason}.", ExitCode.BAD_INPUT)
    sample = (text or Path(str(files("polyfleet.loading") / "perplexity.txt"))).read_text(encoding="utf-8")
    with _bars() as begin:
        written = _write(source, destination, BITS[form], group or 0, begin("Quantising"))
        before = _perplexity(source, sample, device, begin("Perplexity before"))
        after = _perplexity(destination, sample, device, begin("Perplexity after"))
    result = {"source": str(source), "destination": str(destination), "to": form, **written}
    result["perplexity"] = {"before": before[0], "after": after[0], "tokens": before[1]}
    if as_json:
        print_json(result)
    else:
        _show(result)


def _show(result: dict[str, Any]) -> None:
    share = result["bytes_after"] / max(1, result["bytes_before"])
    matrices = f"{result['quantised']} matrices as {result['to']} in groups of {result['group']}"
    out.print(f"{result['destination']}: {matrices}, {share:.0%} of the bytes", markup=False)
    found = result["perplexity"]
    if found["before"] is None:
        out.print("The model has no tokenizer, so there is no perplexity to tell")
        return
    more = found["after"] / found["before"] - 1
    tokens = f"over {found['tokens']} tokens"
    out.print(
        f"Perplexity {found['before']:.3f} before, {found['after']:.3f} after ({more:+.1%}) {tokens}", markup=False
    )


def _write(source: Path, destination: Path, bits: int, group: int, progress: Callable[[float], None]) -> dict[str, Any]:
    from polyfleet.loading.quantise import quantise_folder

    try:
        return asdict(quantise_folder(source, destination, bits, group, progress))
    except OSError as error:
        raise CliError(f"{destination} can't be written: {error.strerror}.") from None
    except ValueError as error:
        raise CliError(sentence(error), ExitCode.BAD_INPUT) from None


def _perplexity(path: Path, text: str, device: str, progress: Callable[[float], None]) -> tuple[float | None, int]:
    """Of the text, read in windows; and of how many tokens. None without a tokenizer."""
    from polyfleet.backends import BackendUnavailable
    from polyfleet.engine.engine import Engine

    options = EngineOptions(device=device, canary=False, max_sequences=DRAWS, kv_cache_tokens=2 * WINDOW)
    try:
        with closing(Engine.load(str(path), options)) as engine:
            model_text = text_of(engine)
            if model_text is None:
                return None, 0
            ids = model_text.encode(text)[:MOST_TOKENS]
            total, count = _read(engine, ids, progress)
    except (ValueError, BackendUnavailable) as error:
        raise CliError(sentence(error), ExitCode.BAD_INPUT) from None
    except RuntimeError as error:
        raise CliError(sentence(error)) from None
    if not count:
        raise CliError("The text must have two tokens or more.", ExitCode.BAD_INPUT)
    return math.exp(-total / count), count


def _read(engine: "Engine", ids: Sequence[int], progress: Callable[[float], None]) -> tuple[float, int]:
    """The sum of the tokens' logprobs, and how many they are: in each window all but the first."""
    window, total, count = min(WINDOW, engine.facts.context_length - 1), 0.0, 0
    for first in range(0, len(ids), window):
        found = _logprobs(engine, tuple(ids[first : first + window]))
        total, count = total + sum(found), count + len(found)
        progress(min(1.0, (first + window) / len(ids)))
    return total, count


def _logprobs(engine: "Engine", ids: tuple[int, ...]) -> list[float]:
    """Of all tokens but the first."""
    from polyfleet.wire.requests import SequenceRequest

    if len(ids) < 2:
        return []
    found: list[float] = []
    engine.add(SequenceRequest("text", ids, max_tokens=1, ignore_eos=True, prompt_logprobs=0))
    while engine.has_work:
        for update in engine.step():
            if update.error:
                raise RuntimeError(update.error)
            found += [token.logprob for token in update.prompt_logprobs]
    return found


@contextmanager
def _bars() -> Iterator[Callable[[str], Callable[[float], None]]]:
    """Bars on a terminal, one after the other; lines elsewhere."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:

        def begin(step: str) -> Callable[[float], None]:
            if not err.is_terminal:
                err.print(f"{step} …", markup=False)
            task = progress.add_task(step, total=1.0)
            return lambda share: progress.update(task, completed=share)

        yield begin
