"""The last lines of a worker and its engine: bounded, JSON, and never what an engine waits for."""

import asyncio
import json
import logging
import os
import subprocess
import sys

from polyfleet.serving.log_tail import DESCRIPTOR_VARIABLE, MAX_LINE_BYTES, EngineLines, LogTail, PipeHandler

PROGRAM = """
import logging
from polyfleet.process.logs import set_up_logging
from polyfleet.serving.log_tail import copy_lines
set_up_logging("info", process="engine")
copy_lines("engine")
logging.getLogger("x").warning("It is hot.", extra={"step": 3})
logging.getLogger("x").info("y" * 200_000)
logging.getLogger("x").info("The end.")
"""


def test_the_last_lines_are_kept_and_no_more() -> None:
    tail = LogTail(3)
    for number in range(5):
        tail.add(str(number))
    assert (tail.last(2), tail.last(10), tail.last(0)) == (["3", "4"], ["2", "3", "4"], [])
    tail.add("x" * (MAX_LINE_BYTES + 1))
    assert len(tail.last(1)[0]) == MAX_LINE_BYTES


def test_what_the_process_logs_is_json_whatever_its_terminal_shows() -> None:
    tail = LogTail()
    root = logging.getLogger()
    try:
        tail.install("worker")
        logging.getLogger("some").warning("Careful.", extra={"worker_id": "w"})
    finally:
        root.removeHandler(tail)
    line = json.loads(tail.last(1)[0])
    assert (line["message"], line["process"], line["worker_id"]) == ("Careful.", "worker", "w")


async def test_an_engine_process_s_lines_come_through_its_pipe() -> None:
    tail = LogTail()
    lines = EngineLines(tail)
    environ = {**os.environ, DESCRIPTOR_VARIABLE: str(lines.descriptor)}
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, env=environ, pass_fds=[lines.descriptor], stderr=subprocess.DEVNULL) as process:
        lines.listen()
        while process.poll() is None:
            await asyncio.sleep(0.01)
    lines.close()
    lines.close()
    found = tail.last(10)
    assert json.loads(found[0])["message"] == "It is hot."
    assert json.loads(found[0])["step"] == 3
    assert json.loads(found[-1])["message"] == "The end."
    assert all(len(each) <= MAX_LINE_BYTES for each in found)


def test_nobody_waits_for_a_pipe_that_is_full_or_gone() -> None:
    reading, writing = os.pipe()
    handler = PipeHandler(writing, "engine")
    record = logging.makeLogRecord({"msg": "x" * 5000})
    for _ in range(100):
        handler.emit(record)
    os.close(reading)
    handler.emit(record)
    os.close(writing)
    handler.emit(record)
