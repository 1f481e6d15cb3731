"""What commands print: tables and colours for people, JSON for machines. Results go to stdout, the rest to stderr."""

from collections.abc import Sequence

import click
import msgspec
from rich.console import Console

# rich drops colours by itself where the stream is no terminal or NO_COLOR is set.
out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def print_json(value: object, indent: int = 2) -> None:
    """One JSON document on stdout; on one line with indent 0."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=indent))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as what they hold; nothing is cut, however narrow the terminal."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    for number, row in enumerate((columns, *rows)):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        out.print(line, style="bold" if number == 0 else None, markup=False)
