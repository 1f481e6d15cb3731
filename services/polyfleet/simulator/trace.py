"""Traces: when which prompts came and how long their answers were. Read from public formats, or drawn with a seed."""

import csv
import json
import random
import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timezone
from math import inf
from pathlib import Path
from typing import Any

from polyfleet.wire.hashing import PLACEMENT_GRAIN

MOONCAKE_BLOCK = 512  # tokens of one of its hash ids
BEGINNINGS = 32  # of drawn prompts that share them
MAX_TOKENS = 10_000_000
MAX_SECONDS = 1e9
STAMP = ("timestamp", "TIMESTAMP")
FRACTION = re.compile(r"\.(\d+)")  # of a second: older Pythons want six digits


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: seconds since the trace began, tokens of prompt and answer, and the prompt's grains."""

    seconds: float
    prompt_tokens: int
    output_tokens: int
    grains: tuple[int, ...] = ()


@dataclass(slots=True)
class Trace:
    """Arrivals in order of time, and how many lines were left out for which reason."""

    arrivals: list[Arrival] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)

    @property
    def seconds(self) -> float:
        """From its begin to its last arrival."""
        return self.arrivals[-1].seconds if self.arrivals else 0.0

    def at_rate(self, requests_per_second: float) -> "Trace":
        """The same requests, in the same order and rhythm, so many a second on average."""
        factor = len(self.arrivals) / requests_per_second / self.seconds if self.seconds else 1.0
        moved = [Arrival(a.seconds * factor, a.prompt_tokens, a.output_tokens, a.grains) for a in self.arrivals]
        return Trace(moved, self.skipped)


def read_trace(path: Path) -> Trace:
    """A trace in JSON lines or CSV, told apart line by line. Broken lines are counted and left out. Raises OSError.

    JSON lines as Mooncake's (`timestamp` in milliseconds, `input_length`, `output_length`, `hash_ids` of 512 tokens
    each); CSV as Azure's (`TIMESTAMP` as a date, `ContextTokens`, `GeneratedTokens`), below a line that names them.
    Either may name its fields as the other, and a timestamp may be a date (UTC unless it says otherwise) or a number:
    milliseconds in JSON lines, seconds in CSV.
    """
    trace, header = Trace(), list[str]()
    with path.open(encoding="utf-8-sig", errors="replace") as lines:
        for line in filter(str.strip, lines):
            try:
                if line.lstrip().startswith("{"):
                    trace.arrivals.append(_arrival(_object(line), 1e-3))
                elif set(names := _cells(line)).intersection(STAMP):
                    header = names
                elif header:
                    trace.arrivals.append(_arrival(dict(zip(header, _cells(line), strict=False)), 1.0))
                else:
                    raise ValueError("no JSON object, nor a row below a line with names")
            except KeyError as error:
                trace.skipped[f"no {error.args[0]}"] += 1
            except ValueError as error:
                trace.skipped[str(error)] += 1
    trace.arrivals.sort(key=lambda each: each.seconds)
    begin = trace.arrivals[0].seconds if trace.arrivals else 0.0
    trace.arrivals = [
        Arrival(each.seconds - begin, each.prompt_tokens, each.output_tokens, each.grains) for each in trace.arrivals
    ]
    return trace


def _object(line: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("no JSON object") from None
    return found


def _cells(line: str) -> list[str]:
    """Of this line alone: a quote that is not closed costs no other one."""
    try:
        return [cell.strip() for cell in next(csv.reader([line.replace("\0", "")]), [])]
    except csv.Error:
        raise ValueError("no row of a table") from None


def _arrival(fields: dict[str, Any], unit: float) -> Arrival:
    stamp = _named(fields, STAMP)
    prompt = _tokens(fields, ("input_length", "ContextTokens"))
    output = _tokens(fields, ("output_length", "GeneratedTokens"))
    seconds = _seconds(stamp, unit)
    if not abs(seconds) <= MAX_SECONDS * 10:
        raise ValueError("a time out of range")
    return Arrival(seconds, prompt, output, _grains(fields.get("hash_ids") or [], prompt))


def _named(fields: dict[str, Any], names: tuple[str, ...]) -> Any:
    for name in names:
        if fields.get(name) not in (None, ""):
            return fields[name]
    raise KeyError(names[0])


def _tokens(fields: dict[str, Any], names: tuple[str, ...]) -> int:
    if (count := _number(_named(fields, names))) is None:
        raise ValueError(f"{names[0]} is no number")
    if not (1 <= count <= MAX_TOKENS and count == int(count)):
        raise ValueError(f"{names[0]} is out of range")
    return int(count)


def _number(value: Any) -> float | None:
    """As JSON or text has it; infinite where it is larger than can be told."""
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None
    except OverflowError:
        return inf


def _seconds(stamp: Any, unit: float) -> float:
    if (number := _number(stamp)) is not None:
        return number * unit
    text = FRACTION.sub(lambda found: f".{found[1]:0<6.6}", str(stamp).strip().replace("Z", "+00:00"))
    try:
        date = datetime.fromisoformat(text)
        return (date if date.tzinfo else date.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError):
        raise ValueError("timestamp is neither number nor date") from None


def _grains(hash_ids: Any, prompt_tokens: int) -> tuple[int, ...]:
    """Eight grains for each block of 512 tokens, as far as the prompt fills them."""
    if not isinstance(hash_ids, list) or not all(isinstance(each, int) for each in hash_ids):
        raise ValueError("hash_ids are no numbers")
    each = MOONCAKE_BLOCK // PLACEMENT_GRAIN
    grains = [(number % 2**60) * each + part for number in hash_ids for part in range(each)]
    return tuple(grains[: prompt_tokens // PLACEMENT_GRAIN])


def draw_trace(requests: int, seed: int, *, shared: bool, prompt_tokens: int = 1024, output_tokens: int = 160) -> Trace:
    """A seeded trace, one request a second on average: Poisson arrivals, log-normal lengths around these.

    `shared`: three quarters of each prompt are one of many beginnings, some far more popular than others, as system
    prompts and documents are; else no two prompts have anything in common.
    """
    draw, trace, now = random.Random(seed), Trace(), 0.0
    for number in range(requests):
        now += draw.expovariate(1.0)
        length = min(8 * prompt_tokens, max(PLACEMENT_GRAIN, round(draw.lognormvariate(0, 0.5) * prompt_tokens)))
        output = min(8 * output_tokens, max(2, round(draw.lognormvariate(0, 0.6) * output_tokens)))
        count = length // PLACEMENT_GRAIN
        begin = 3 * count // 4 if shared else 0
        popular = int(BEGINNINGS * draw.random() ** 2)
        grains = [popular << 32 | part for part in range(begin)]
        grains += [1 << 59 | number << 16 | part for part in range(count - begin)]
        trace.arrivals.append(Arrival(now, length, output, tuple(grains)))
    return trace
