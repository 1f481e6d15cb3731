"""Rows of every benchmark: a table for people, `--json FILE` for machines, one row per figure and peer."""

import json
import shlex
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

from polyfleet.benchmark.rows import Row, compare

__all__ = ["Row", "compare", "print_table", "publish"]
ALIGN = "<><<>>"  # numbers stand flush right


def publish(rows: Iterable[Row], json_file: Path | None) -> list[Row]:
    """Stamp the rows with command and commit, print them as a table and write them to `json_file` if given.

    Each is written as soon as it is there: a run that breaks off leaves those before.
    """
    command, commit, stamped = shlex.join(sys.argv), _commit(), list[Row]()
    for row in rows:
        stamped.append(replace(row, command=command, commit=commit))
        if json_file:
            json_file.write_text(json.dumps([asdict(each) for each in stamped], indent=2) + "\n", encoding="utf-8")
    print_table(stamped)
    return stamped


def print_table(rows: Iterable[Row]) -> None:
    """The rows in aligned columns, nothing cut off, whatever the width of the terminal."""
    lines = [("name", "value", "unit", "peer", "peer value", "ratio")]
    for row in rows:
        lines.append((row.name, _number(row.value), row.unit, row.peer, _number(row.peer_value), _number(row.ratio)))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        columns = zip(line, widths, ALIGN, strict=True)
        print("  ".join(f"{cell:{align}{width}}" for cell, width, align in columns).rstrip())


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def _commit() -> str:
    """The commit checked out here, `-dirty` behind it when files differ from it; empty outside a git checkout."""
    found = subprocess.run(
        ["git", "describe", "--always", "--abbrev=12", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip()
