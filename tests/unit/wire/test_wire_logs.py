"""Structured log lines."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator

import pytest

from polyfleet.wire.logs import log_fields, set_up_logging


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
