"""`polyfleet chat`: a conversation with a model, or one turn of it from stdin."""

import json
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from polyfleet.cli.errors import CliError, ExitCode, by_option
from polyfleet.cli.images import is_url, with_images
from polyfleet.cli.options import Gateway, examples, gateway_options, model_option
from polyfleet.cli.terminal.keyboard import quiet_keyboard, read_line
from polyfleet.cli.terminal.output import command_name, err
from polyfleet.cli.terminal.wrap import Wrapper
from polyfleet.process.flags import FiniteRange

if TYPE_CHECKING:
    from polyfleet.client import Client, Message, Usage

COMMANDS = {
    "/image FILE": "shows a file, or what is at a URL, with what you say next",
    "/clear": "forgets the conversation",
    "/help": "shows this",
    "/quit": "ends the chat, as Ctrl-D does",
}
HELP = (
    "Ctrl-C stops an answer. "
    + "; ".join(f"{name} {what}" for name, what in COMMANDS.items())
    + ". A space in front of a / sends it to the model."
)


EXAMPLES = (
    "polyfleet chat --system 'Answer briefly.'",
    "polyfleet chat --tools tools.json",
    "echo 'What is a mutex?' | polyfleet chat",
    "echo 'Is it so?' | polyfleet chat --choice yes --choice no",
)


def json_file(context: click.Context, parameter: click.Parameter, path: Path | None) -> Any:
    """What a file of JSON holds. Raises click.BadParameter."""
    try:
        return None if path is None else json.loads(path.read_bytes())
    except ValueError as error:
        raise click.BadParameter(f"{path} is no valid JSON: {error}.") from None


JSON_FILE: Any = {"type": click.Path(exists=True, dir_okay=False, path_type=Path), "callback": json_file}


@click.command(epilog=examples(*EXAMPLES))
@model_option
@click.option("--system", metavar="TEXT", help="What the model is told first.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Tokens of one answer; default: as many as fit.")
@click.option("--temperature", type=FiniteRange(0, 2), help="0 is greedy; default: the model's own, else 1.")
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), help="Of the draws.")
@click.option("--json-schema", **JSON_FILE, metavar="FILE", help="Answers are JSON that this schema holds for.")
@click.option("--regex", help="Answers match this from end to end.")
@click.option(
    "--choice",
    "choices",
    multiple=True,
    callback=lambda _context, _option, texts: texts or None,
    help="Answers are one of these; repeat it.",
)
@click.option(
    "--tools",
    **JSON_FILE,
    metavar="FILE",
    help="JSON list of tools, as OpenAI's clients have them; what they give you type.",
)
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
            remark(f"{name} at {gateway.address}. {HELP}")
            converse(client, history, {"model": name, **options})
            return
        question = sys.stdin.read().strip()
        if not question:
            raise CliError("stdin is empty: pipe a question into it.", ExitCode.BAD_INPUT)
        answer = say(client, [*history, Message("user", question)], {"model": model or "", **options})
        for call in answer.tool_calls:
            click.echo(f"{call.name}({call.arguments})")


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

    A turn that fails is told and forgotten, but for the images that were to go with it; the conversation goes on.
    """
    from polyfleet.client import Message, PolyfleetError

    beginning, shown = list(history), list[str]()
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
                history, shown = list(beginning), []
            elif command == "/image":
                shown += show(line.removeprefix(command).strip())
            else:
                unknown = "" if command == "/help" else f"There is no command {command}. "
                remark(f"{unknown}{HELP}")
        elif line.strip():
            try:
                turn = with_images(line.strip(), shown) if shown else Message("user", line.strip())
                said = answered(client, [*history, turn], options)
            except PolyfleetError as error:
                remark(f"{by_option(error)} Not remembered; say it again, or /clear.", "red")
            except (EOFError, KeyboardInterrupt):  # in place of what a tool gives
                click.echo()
                return
            else:
                history += [turn, *said]
                shown = []


def answered(client: "Client", messages: "list[Message]", options: dict[str, Any]) -> "list[Message]":
    """The model's next turn; while it calls tools, what the user says that they give, and its next turn again."""
    from polyfleet.client import Message

    said: list[Message] = []
    while True:
        with quiet_keyboard():
            said.append(say(client, [*messages, *said], options))
        if not (calls := said[-1].tool_calls):
            return said
        given = [(call, read_line(f"{call.name}({call.arguments}) = ")) for call in calls]
        said += [Message("tool", result, tool_call_id=call.id) for call, result in given]


def show(name: str) -> list[str]:
    """The URL that is to be shown, or the file, once it is there; else says why not."""
    if is_url(name) or (name and Path(name).expanduser().is_file()):
        err.print(f"{name} goes with what you say next.", style="dim", markup=False)
        return [name]
    err.print(f"There is no file {name}." if name else "Name a file: /image FILE.", style="red", markup=False)
    return []


def say(client: "Client", messages: "list[Message]", options: dict[str, Any]) -> "Message":
    """Stream the model's next turn to stdout and return it; Ctrl-C cancels it and keeps what has come.

    On a terminal words are kept whole, and what it took is said below the answer. What it thinks goes to stderr.
    """
    from polyfleet.client import Message

    answer, thoughts = (Shown(each) for each in (sys.stdout, sys.stderr))
    began, first, last, usage = time.monotonic(), 0.0, 0.0, None
    with client.stream(messages=messages, **options) as stream:
        try:
            for delta in stream:
                if delta.token_ids:
                    last = time.monotonic()
                    first = first or last
                usage = delta.usage or usage
                if delta.reasoning:
                    thought(thoughts.add(delta.reasoning))
                elif delta.text and thoughts.begun:
                    thought(thoughts.finish())
                click.echo(answer.add(delta.text), nl=False)
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
        finally:
            if thoughts.begun:
                thought(thoughts.finish())
            so_far = stream.transcript.completion()
            if so_far.choices and (so_far.text or not so_far.tool_calls):
                click.echo(answer.finish(), nl=False)
    if sys.stdin.isatty() and usage:
        remark(pace(usage, first - began, last - first))
    return (
        Message("assistant", so_far.text, tool_calls=so_far.tool_calls) if so_far.choices else Message("assistant", "")
    )


class Shown:
    """A text that comes in parts, as a stream shows it: on a terminal words are kept whole."""

    def __init__(self, stream: TextIO) -> None:
        self._wrapper = Wrapper(shutil.get_terminal_size().columns) if stream.isatty() else None
        self.begun = False

    def add(self, text: str) -> str:
        """What can be shown now."""
        self.begun = self.begun or bool(text)
        return self._wrapper.add(text) if self._wrapper else text

    def finish(self) -> str:
        """The rest, and the end of the line."""
        self.begun = False
        return (self._wrapper.finish() if self._wrapper else "") + "\n"


def remark(text: str, style: str = "dim") -> None:
    """Say what is no part of the conversation; on a terminal in lines of whole words."""
    err.print(text, style=style, markup=False, soft_wrap=not err.is_terminal)


def thought(text: str) -> None:
    """Show a part of what the model thinks."""
    err.print(text, style="dim", end="", markup=False)


def pace(usage: "Usage", first_seconds: float, rest_seconds: float) -> str:
    """How many tokens came, after how many seconds the first, and how many a second from then on."""
    count = usage.completion_tokens
    said = f"{count} token{'s' * (count != 1)}, the first after {first_seconds:.2f} s"
    with suppress(ZeroDivisionError):
        said += f", {(count - 1) / rest_seconds:.1f} tokens/s" if count > 1 else ""
    return said
