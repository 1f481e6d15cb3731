"""Vendor tools that misbehave as processes: they print without end, or can't be killed."""

import os

import pytest

from polyfleet.backends.host import TOOL_OUTPUT_BYTES, run_tool


def test_a_tool_that_prints_without_end_is_killed() -> None:
    assert run_tool(("yes", "garbage"), 60).problem == "yes printed more than 4 MiB"


def test_long_output_is_read_to_its_end() -> None:
    size = TOOL_OUTPUT_BYTES // 4
    result = run_tool(("sh", "-c", f"head -c {size} /dev/zero; exit 3"), 60)
    assert (len(result.output), result.exit_status, result.problem) == (size, 3, "")


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert run_tool(("printf", r"\377\376 35C"), 60).output == "\ufffd\ufffd 35C"


def test_a_tool_that_closes_its_output_and_stays_is_a_hang() -> None:
    assert run_tool(("sh", "-c", "exec >&- 2>&-; exec sleep 30"), 0.3).problem == "sh did not answer within 0.3 s"


def test_a_tool_of_another_user_that_hangs_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    kill = os.killpg

    def refuse(group: int, signal: int) -> None:
        kill(group, signal)  # the test leaves nothing running
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "killpg", refuse)
    assert run_tool(("sleep", "30"), 0.2).problem == "sleep did not answer within 0.2 s"
