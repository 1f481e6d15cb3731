"""Structured log lines."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator

import pytest

from polyfleet.process.logs import RATE_BURST, RateLimit, log_fields, set_up_logging


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restore_root() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_json_line_carries_extra_and_enclosing_fields() -> None:
    out = io.StringIO()
    set_up_logging("info", out, process="worker")
    log = logging.getLogger("polyfleet.x")
    with log_fields(request_id="r-1"):
        log.info("Started %d.", 3, extra={"worker_id": "w-1"})
    log.debug("hidden")
    log.info("outside")
    first, second = (json.loads(line) for line in out.getvalue().splitlines())
    assert first["message"] == "Started 3."
    assert (first["level"], first["process"], first["logger"]) == ("info", "worker", "polyfleet.x")
    assert (first["request_id"], first["worker_id"]) == ("r-1", "w-1")
    assert first["time"].endswith("Z")
    assert "request_id" not in second


def test_fields_follow_tasks_apart() -> None:
    out = io.StringIO()
    set_up_logging("info", out)

    async def one(name: str) -> None:
        with log_fields(request_id=name):
            await asyncio.sleep(0)
            logging.getLogger("x").info("in %s", name)

    async def both() -> None:
        await asyncio.gather(one("a"), one("b"))

    asyncio.run(both())
    for line in map(json.loads, out.getvalue().splitlines()):
        assert line["message"] == f"in {line['request_id']}"


def test_exception_and_newlines_stay_one_line() -> None:
    out = io.StringIO()
    set_up_logging("info", out)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("x").exception("failed")
    (line,) = out.getvalue().splitlines()
    assert "ValueError: two\nlines" in json.loads(line)["exception"]


def test_terminal_lines_are_for_people() -> None:
    out = Terminal()
    set_up_logging("warning", out)
    logging.getLogger("x").warning("Careful.", extra={"request_id": "r-2"})
    assert "Careful." in out.getvalue()
    assert "request_id=r-2" in out.getvalue()
    assert not out.getvalue().startswith("{")


def test_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="debug, info, warning, error"):
        set_up_logging("loud")


def test_a_flood_of_one_kind_is_cut_and_counted() -> None:
    now = 0.0
    limit = RateLimit(burst=3, per_second=1.0, clock=lambda: now)
    record = logging.makeLogRecord({"levelno": logging.ERROR, "pathname": "a.py", "lineno": 1})
    assert [limit.filter(record) for _ in range(10)] == [True] * 3 + [False] * 7
    assert not hasattr(record, "left_out")
    now = 1.0
    assert limit.filter(record)
    assert vars(record)["left_out"] == 7
    again = logging.makeLogRecord({"levelno": logging.ERROR, "pathname": "a.py", "lineno": 1})
    assert not limit.filter(again)
    now = 1000.0  # a long silence earns no more than the burst
    assert [limit.filter(again) for _ in range(4)] == [True] * 3 + [False]


def test_other_kinds_and_lower_levels_are_not_cut() -> None:
    limit = RateLimit(burst=1, per_second=0.0, clock=lambda: 0.0)
    flood = logging.makeLogRecord({"levelno": logging.WARNING, "pathname": "a.py", "lineno": 1})
    assert [limit.filter(flood) for _ in range(2)] == [True, False]
    error = OSError("x")
    for other in (
        {"levelno": logging.WARNING, "pathname": "a.py", "lineno": 2},
        {"levelno": logging.WARNING, "pathname": "a.py", "lineno": 1, "exc_info": (OSError, error, None)},
    ):
        assert limit.filter(logging.makeLogRecord(other))
    line = logging.makeLogRecord({"levelno": logging.INFO, "pathname": "a.py", "lineno": 1})
    assert all(limit.filter(line) for _ in range(100))


def test_a_process_limits_its_warnings() -> None:
    out = io.StringIO()
    set_up_logging("info", out)
    for number in range(RATE_BURST * 10):
        logging.getLogger("x").warning("No room for connection %d.", number)
    assert RATE_BURST <= len(out.getvalue().splitlines()) < RATE_BURST * 2
