"""Rows of every benchmark: a table for people, `--json FILE` for machines, one row per figure and peer."""

import json
import shlex
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

ALIGN = "<><<>>"  # numbers stand flush right


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `ratio` over 1 means better than the peer; None where there is no peer or nothing to divide."""

    name: str
    value: float | None
    unit: str
    peer: str = ""
    peer_value: float | None = None
    ratio: float | None = None
    command: str = ""
    commit: str = ""


def compare(
    name: str,
    value: float | None,
    unit: str,
    peer: str = "",
    peer_value: float | None = None,
    *,
    lower_is_better: bool = False,
) -> Row:
    """A row with its ratio."""
    above, below = (peer_value, value) if lower_is_better else (value, peer_value)
    ratio = above / below if above is not None and below else None
    return Row(name, value, unit, peer, peer_value, ratio)


def publish(rows: Iterable[Row], json_file: Path | None) -> list[Row]:
    """Stamp the rows with command and commit, print them as a table and write them to `json_file` if given."""
    stamped = [replace(row, command=shlex.join(sys.argv), commit=_commit()) for row in rows]
    print_table(stamped)
    if json_file:
        json_file.write_text(json.dumps([asdict(row) for row in stamped], indent=2) + "\n", encoding="utf-8")
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
