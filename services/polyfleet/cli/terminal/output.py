"""What commands print: tables and colours for people, JSON for machines. Results go to stdout, the rest to stderr."""

import contextlib
import shlex
import shutil
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import click
import msgspec
from rich.console import Console

# rich drops colours by itself where the stream is no terminal or NO_COLOR is set.
out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def spinner(text: str) -> AbstractContextManager[object]:
    """Turns beside `text` for as long as the block lasts; nothing where nobody looks."""
    return err.status(text) if err.is_terminal else contextlib.nullcontext()


def print_json(value: object, indent: int = 2) -> None:
    """One JSON document on stdout; on one line with indent 0."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=indent))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as what they hold; nothing is cut, however narrow the terminal."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    for number, row in enumerate((columns, *rows)):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        out.print(line, style="bold" if number == 0 else None, markup=False)


def command_name() -> str:
    """How a shell finds this environment's `polyfleet`: by its name where that is on the PATH, else by its path."""
    here = Path(sys.executable).with_name("polyfleet")
    found = shutil.which("polyfleet")
    return "polyfleet" if found and Path(found).absolute() == here.absolute() else shell_path(here)


def shell_path(path: Path) -> str:
    """A path as one word for a shell, from the working folder where it lies in there."""
    with contextlib.suppress(OSError, ValueError):
        path = path.absolute().relative_to(Path.cwd())
    return shlex.quote(str(path))
