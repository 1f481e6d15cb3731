"""`polyfleet chat`: a conversation with a model, or one turn of it from stdin."""

import shutil
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from polyfleet.cli.errors import CliError, ExitCode
from polyfleet.cli.options import Gateway, examples, gateway_options, model_option
from polyfleet.cli.terminal.keyboard import quiet_keyboard, read_line
from polyfleet.cli.terminal.output import command_name, err
from polyfleet.cli.terminal.wrap import Wrapper
from polyfleet.process.flags import FiniteRange

if TYPE_CHECKING:
    from polyfleet.client import Client, Message, Usage

COMMANDS = {"/clear": "forgets the conversation", "/help": "shows this", "/quit": "ends the chat, as Ctrl-D does"}
HELP = (
    "Ctrl-C stops an answer. "
    + "; ".join(f"{name} {what}" for name, what in COMMANDS.items())
    + ". A space in front of a / sends it to the model."
)


@click.command(epilog=examples("polyfleet chat --system 'Answer briefly.'", "echo 'What is a mutex?' | polyfleet chat"))
@model_option
@click.option("--system", metavar="TEXT", help="What the model is told first.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Tokens of one answer; default: as many as fit.")
@click.option("--temperature", type=FiniteRange(0, 2), help="0 is greedy; default: the model's own, else 1.")
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), help="Of the draws.")
@gateway_options
def chat(
    gateway: Gateway,
    system: str | None,
    model: str | None,
    **options: Any,
) -> None:
    """Talk with a model. From a pipe: answer what stdin says, and end."""
    from polyfleet.client import Message

    history = [Message("system", system)] if system else []
    with gateway.client() as client:
        if sys.stdin.isatty():
            name = model or only_model(client)
            err.print(f"{name} at {gateway.address}. {HELP}", style="dim", markup=False)
            converse(client, history, {"model": name, **options})
            return
        question = sys.stdin.read().strip()
        if not question:
            raise CliError("stdin is empty: pipe a question into it.", ExitCode.BAD_INPUT)
        say(client, [*history, Message("user", question)], {"model": model or "", **options})


def only_model(client: "Client") -> str:
    """The name of the model that is served. Raises CliError unless it is the only one."""
    names = [model.name for model in client.models()]
    if not names:
        raise CliError(f"No model is served yet: `{command_name()} deploy NAME PATH` serves one.", ExitCode.UNAVAILABLE)
    if len(names) > 1:
        raise CliError(f"Several models are served; name one with --model: {', '.join(names)}.", ExitCode.BAD_INPUT)
    return names[0]


def converse(client: "Client", history: "list[Message]", options: dict[str, Any]) -> None:
    """Read turns from the terminal until it ends. `history` begins with the system's message, if there is one.

    A turn that fails is told and forgotten; the conversation goes on.
    """
    from polyfleet.client import Message, PolyfleetError

    beginning = list(history)
    while True:
        try:
            line = read_line("> ")
        except (EOFError, KeyboardInterrupt):
            click.echo()
            return
        if line.startswith("/"):
            command = line.split()[0]
            if command == "/quit":
                return
            if command == "/clear":
                history = list(beginning)
            else:
                unknown = "" if command == "/help" else f"There is no command {command}. "
                err.print(f"{unknown}{HELP}", style="dim", markup=False)
        elif line.strip():
            turn = Message("user", line.strip())
            try:
                with quiet_keyboard():
                    answer = say(client, [*history, turn], options)
            except PolyfleetError as error:
                err.print(f"{error.message} Not remembered; say it again, or /clear.", style="red", markup=False)
            else:
                history += [turn, Message("assistant", answer)]


def say(client: "Client", messages: "list[Message]", options: dict[str, Any]) -> str:
    """Stream the model's next turn to stdout and return it; Ctrl-C cancels it and keeps what has come.

    On a terminal words are kept whole, and what it took is said below the answer. What it thinks goes to stderr.
    """
    wrapper = Wrapper(shutil.get_terminal_size().columns) if sys.stdout.isatty() else None
    parts: list[str] = []
    thinking = False
    began, first, last, usage = time.monotonic(), 0.0, 0.0, None
    with client.stream(messages=messages, **options) as stream:
        try:
            for delta in stream:
                if delta.token_ids:
                    last = time.monotonic()
                    first = first or last
                usage = delta.usage or usage
                if delta.reasoning:
                    err.print(delta.reasoning, style="dim", end="", markup=False, highlight=False, soft_wrap=True)
                elif delta.text and thinking:
                    err.print()
                thinking = bool(delta.reasoning)
                click.echo(wrapper.add(delta.text) if wrapper else delta.text, nl=False)
                parts.append(delta.text)
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
        finally:
            if parts:
                click.echo(wrapper.finish() if wrapper else "")
    if sys.stdin.isatty() and usage:
        err.print(pace(usage, first - began, last - first), style="dim", markup=False)
    return "".join(parts)


def pace(usage: "Usage", first_seconds: float, rest_seconds: float) -> str:
    """How many tokens came, after how many seconds the first, and how many a second from then on."""
    count = usage.completion_tokens
    said = f"{count} token{'s' * (count != 1)}, the first after {first_seconds:.2f} s"
    with suppress(ZeroDivisionError):
        said += f", {(count - 1) / rest_seconds:.1f} tokens/s" if count > 1 else ""
    return said
