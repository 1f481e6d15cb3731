"""Logging of every process: JSON lines for machines, short coloured lines on a terminal. Pure Python, to stderr.

    set_up_logging("info")
    log = logging.getLogger(__name__)
    with log_fields(request_id="req-1"):
        log.info("Sequence started.", extra={"worker_id": "w-1"})

Fields come from `extra=` and from the enclosing `log_fields`, which follow asyncio tasks. Prompt and output text are
never logged. Warnings and errors that repeat themselves are limited by rate; `left_out` counts what is missing.
"""

import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timezone
from types import MappingProxyType
from typing import TextIO

RATE_BURST, RATE_PER_SECOND = 50, 2.0  # lines of one kind: so many at once, then so many a second
LEVELS = ("debug", "info", "warning", "error")
LEVEL_VARIABLE = "POLYFLEET_LOG_LEVEL"  # holds where no flag says otherwise
_EMPTY: Mapping[str, object] = MappingProxyType({})
_fields: ContextVar[Mapping[str, object]] = ContextVar("polyfleet_log_fields", default=_EMPTY)
_JSON = json.JSONEncoder(ensure_ascii=False, default=str)  # one for all lines: json.dumps makes one for each
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_COLOURS = {
    logging.DEBUG: "2",
    logging.INFO: "32",
    logging.WARNING: "33",
    logging.ERROR: "31",
    logging.CRITICAL: "31;1",
}


@contextmanager
def log_fields(**fields: object) -> Iterator[None]:
    """Add `fields` (say, `request_id`) to every line logged inside, also by tasks started inside."""
    token = _fields.set({**_fields.get(), **fields})
    try:
        yield
    finally:
        _fields.reset(token)


def set_up_logging(level: str = "info", stream: TextIO | None = None, *, process: str = "") -> None:
    """Send the root logger's lines to `stream` (stderr): JSON lines, or readable ones when it is a terminal.

    `level` is one of LEVELS; `process` names the process in each line ("gateway", "worker"). Warnings and errors
    pass a RateLimit. Calling again replaces the earlier set-up.
    """
    if level not in LEVELS:
        raise ValueError(f"The log level must be one of {', '.join(LEVELS)}, not {level!r}.")
    out = stream if stream is not None else sys.stderr
    handler = logging.StreamHandler(out)
    handler.setFormatter(TerminalFormatter() if out.isatty() else JsonFormatter(process))
    handler.addFilter(RateLimit())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for chatty in ("asyncio", "grpc"):  # their debug lines are about their own insides
        logging.getLogger(chatty).setLevel(max(logging.INFO, logging.getLogger().level))


class RateLimit(logging.Filter):
    """Lets `burst` lines of one kind pass at once, and `per_second` of them from then on; lower levels all pass.

    A kind is the place in the code that logs, with the type of the exception. The first line that passes again says in
    `left_out` how many before it did not.
    """

    def __init__(
        self,
        burst: int = RATE_BURST,
        per_second: float = RATE_PER_SECOND,
        level: int = logging.WARNING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._burst, self._per_second, self._level, self._clock = burst, per_second, level, clock
        self._kinds: dict[tuple[str, int, type | None], _Allowance] = {}  # bounded by the code that there is
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written."""
        if record.levelno < self._level:
            return True
        kind = (record.pathname, record.lineno, record.exc_info[0] if record.exc_info else None)
        with self._lock:
            now = self._clock()
            allowance = self._kinds.setdefault(kind, _Allowance(float(self._burst), now))
            earned = (now - allowance.since) * self._per_second
            allowance.lines, allowance.since = min(self._burst, allowance.lines + earned), now
            if allowance.lines < 1:
                allowance.left_out += 1
                return False
            allowance.lines -= 1
            if allowance.left_out:
                record.left_out, allowance.left_out = allowance.left_out, 0
        return True


@dataclass(slots=True)
class _Allowance:
    """How many lines of one kind may be written, as of `since`, and how many were not since the last one."""

    lines: float
    since: float
    left_out: int = 0


def record_fields(record: logging.LogRecord) -> dict[str, object]:
    """What a record carries beside its message: the enclosing `log_fields`, then its own `extra`."""
    own = {key: value for key, value in vars(record).items() if key not in _STANDARD}
    return {**_fields.get(), **own}


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC, RFC 3339), level, logger, message, the fields, exception when there is one."""

    def __init__(self, process: str = "") -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its newline."""
        time = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        line: dict[str, object] = {"time": time.replace("+00:00", "Z"), "level": record.levelname.lower()}
        if self._process:
            line["process"] = self._process
        line |= {"logger": record.name, "message": record.getMessage()}
        line |= {key: value for key, value in record_fields(record).items() if key not in line}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _JSON.encode(line)


class TerminalFormatter(logging.Formatter):
    """`12:00:01 info    message key=value`, the level coloured."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, and the traceback below it when there is one."""
        time = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        level = f"\x1b[{_COLOURS.get(record.levelno, '0')}m{record.levelname.lower():<7}\x1b[0m"
        fields = "".join(f" \x1b[2m{key}={value}\x1b[0m" for key, value in record_fields(record).items())
        trace = "\n" + self.formatException(record.exc_info) if record.exc_info else ""
        return f"{time} {level} {record.getMessage()}{fields}{trace}"
