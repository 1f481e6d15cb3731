"""`polyfleet chat`: a conversation with a model, or one turn of it from stdin."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from polyfleet.cli.errors import CliError, ExitCode
from polyfleet.cli.options import FiniteRange, examples, gateway_options, open_client
from polyfleet.cli.output import err

if TYPE_CHECKING:
    from polyfleet.client import Client, Message

HELP = "Ctrl-C stops an answer, Ctrl-D ends the chat, /clear forgets it."


@click.command(epilog=examples("polyfleet chat --system 'Answer briefly.'", "echo 'What is a mutex?' | polyfleet chat"))
@click.option("--model", default="", help="Served name; the only model when there is one.")
@click.option("--system", metavar="TEXT", help="What the model is told first.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Tokens of one answer; default: as many as fit.")
@click.option("--temperature", type=FiniteRange(0, 2), help="0 is greedy; default: the model's own, else 1.")
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), help="Of the draws.")
@gateway_options
def chat(
    gateway: str,
    api_key_file: Path | None,
    tls: bool,
    ca_file: Path | None,
    system: str | None,
    **options: Any,
) -> None:
    """Talk with a model. From a pipe: answer what stdin says, and end."""
    from polyfleet.client import Message

    history = [Message("system", system)] if system else []
    with open_client(gateway, api_key_file, tls, ca_file) as client:
        if sys.stdin.isatty():
            converse(client, history, options)
            return
        question = sys.stdin.read().strip()
        if not question:
            raise CliError("stdin is empty: pipe a question into it.", ExitCode.BAD_INPUT)
        say(client, [*history, Message("user", question)], options)


def converse(client: "Client", history: "list[Message]", options: dict[str, Any]) -> None:
    """Read turns from the terminal until it ends. `history` begins with the system's message, if there is one."""
    from polyfleet.client import Message

    err.print(HELP, style="dim")
    beginning = list(history)
    while True:
        try:
            line = input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            click.echo()
            return
        if line == "/clear":
            history = list(beginning)
        elif line:
            turn = Message("user", line)
            answer = say(client, [*history, turn], options)
            history += [turn, Message("assistant", answer)]


def say(client: "Client", messages: "list[Message]", options: dict[str, Any]) -> str:
    """Stream the model's next turn to stdout and return it; Ctrl-C cancels it and keeps what has come."""
    parts: list[str] = []
    with client.stream(messages=messages, **options) as stream:
        try:
            for delta in stream:
                click.echo(delta.text, nl=False)
                parts.append(delta.text)
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
    click.echo()
    return "".join(parts)
