"""`polyfleet generate`: one continuation, from a gateway or, with --offline, by the engine in this very process."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from polyfleet.cli.images import with_images
from polyfleet.cli.options import (
    Gateway,
    GivenPath,
    GivenText,
    examples,
    gateway_options,
    json_option,
    model_option,
    read_text,
)
from polyfleet.cli.terminal.output import print_json
from polyfleet.process.flags import FiniteRange, option_flags, take_options
from polyfleet.wire.options import OPTIONS

if TYPE_CHECKING:
    from polyfleet.client import Client


class TokenIds(click.ParamType):  # type: ignore[type-arg]  # generic in newer clicks only
    """`1,2,3` as a tuple of ids."""

    name = "ids"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Fails with click's usage error for anything but non-negative integers of 32 bits between commas."""
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in str(value).split(",")]
        wrong = [part for part in parts if not re.fullmatch("[0-9]{1,10}", part) or int(part) >= 2**32]
        if wrong:
            self.fail(f"{wrong[0]!r} is no token id: write non-negative integers between commas, such as 1,2,3.")
        return tuple(int(part) for part in parts)


@click.command(
    epilog=examples(
        "polyfleet generate 'The capital of France is' --max-tokens 20",
        "polyfleet generate --offline ./model.gguf --prompt-ids 1,2,3 --dtype float32 --json",
    )
)
@click.argument("text", required=False)
@click.option("--prompt", metavar="TEXT", help="The same as TEXT.")
@click.option(
    "--image",
    "images",
    type=GivenText(),
    multiple=True,
    metavar="FILE|URL",
    help="Show an image to the model, which then answers TEXT as a chat's turn; may be given several times. URLs are "
    "fetched by the gateway, from hosts that its operator allowed.",
)
@click.option("--prompt-ids", type=TokenIds(), metavar="1,2,3", help="Token ids to continue, instead of a text.")
@model_option
@click.option("--max-tokens", type=click.IntRange(min=1), default=50, show_default=True, help="Tokens to generate.")
@click.option("--min-tokens", type=click.IntRange(min=0), default=0, help="Tokens before which nothing ends the text.")
@click.option(
    "--temperature", type=FiniteRange(0, 2), help="0 is greedy. Default: offline 0, else the model's own or 1."
)
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), help="Of the draws when the temperature is over 0.")
@click.option("--ignore-eos", is_flag=True, help="Go on past the model's own end tokens.")
@click.option("--offline", type=GivenPath(path_type=Path), metavar="PATH", help="GGUF file or Hugging Face folder.")
@option_flags("[offline only]")
@click.option("--device", metavar="NAME", help="An accelerator, or one of its devices as cpu:0.  [offline only]")
@click.option(
    "--generation-config",
    type=click.Choice(["auto", "none"]),
    help="auto: the model's own sampling defaults, temperature included.  [offline only; default: none]",
)
@gateway_options
@json_option
def generate(
    text: str | None,
    prompt: str | None,
    images: tuple[str, ...],
    prompt_ids: tuple[int, ...] | None,
    model: str | None,
    offline: Path | None,
    device: str | None,
    generation_config: str | None,
    as_json: bool,
    gateway: Gateway,
    **flags: Any,
) -> None:
    """Continue TEXT, raw as it is; `-` or nothing reads stdin.

    A gateway's answer is streamed as it comes; --json prints it whole, with token ids and finish reason.
    """
    text = read_prompt(text, prompt, prompt_ids)
    options, sampling = take_options(flags), flags
    if offline is not None:
        if model or images:
            raise click.UsageError(
                "--model names a model of a gateway, --image goes to one; --offline names the file itself."
            )
        from polyfleet.cli.offline import generate_offline

        own_defaults = generation_config == "auto"
        result = generate_offline(
            offline, text, prompt_ids, device or "auto", options, own_defaults=own_defaults, **sampling
        )
        print_json(result, indent=0) if as_json else click.echo(
            result["text"] or ",".join(map(str, result["token_ids"]))
        )
        return
    offline_only: dict[str, object] = {"--device": device, "--generation-config": generation_config}
    offline_only |= {OPTIONS[name].flag: value for name, value in options.items()}
    for option in (name for name, value in offline_only.items() if value is not None):
        raise click.UsageError(f"{option} belongs to --offline: a gateway and its workers have chosen theirs.")
    with gateway.client() as client:
        answer(client, asked(text, prompt_ids, images), as_json, {"model": model or "", **sampling})


def asked(text: str | None, prompt_ids: tuple[int, ...] | None, images: tuple[str, ...]) -> dict[str, Any]:
    """The prompt as the client takes it: with images, a chat's turn."""
    if not images:
        return {"prompt": text, "token_ids": prompt_ids}
    if prompt_ids:
        raise click.UsageError("--image goes with TEXT, not with --prompt-ids.")
    return {"messages": [with_images(text or "", images)]}


def read_prompt(text: str | None, prompt: str | None, prompt_ids: tuple[int, ...] | None) -> str | None:
    """The text to continue, from stdin when it is `-` or nothing was given; None when there are ids."""
    if sum(each is not None for each in (text, prompt, prompt_ids)) > 1:
        raise click.UsageError("Give one of TEXT, --prompt and --prompt-ids, not both.")
    if prompt_ids is not None:
        return None
    return read_text(prompt if text is None else text, "The prompt")


def answer(client: "Client", prompt: dict[str, Any], as_json: bool, options: dict[str, Any]) -> None:
    """Stream the gateway's answer to a prompt to stdout, or print it whole as JSON."""
    with client.stream(**prompt, **options) as stream:
        for delta in stream:
            if not as_json:
                click.echo(delta.text, nl=False)
    if not as_json:
        click.echo()
        return
    done = stream.transcript.completion()
    print_json(
        {
            "token_ids": done.token_ids,
            "text": done.text,
            "finish_reason": done.finish_reason,
            "usage": done.usage,
            "request_id": done.request_id,
            "worker_ids": done.worker_ids,
        },
        indent=0,
    )
