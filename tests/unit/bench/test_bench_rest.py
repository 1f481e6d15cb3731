"""The table of a fleet at rest: whose process is whose, and what the columns add up to."""

import subprocess
import sys
from collections.abc import Sequence

import psutil
import pytest
from bench.rest import report, what


@pytest.mark.parametrize(
    ("command", "owner", "name"),
    [
        (("-m", "polyfleet.serving", "--launched"), 0, "worker"),
        (("-m", "polyfleet.serving.engine_process", "--socket", "3"), 0, "engine"),
        (("-m", "polyfleet.console", "--listen", "127.0.0.1:0"), 0, "console"),
        (("ray::SchedulerActor.__init__",), 1, "scheduler (an actor)"),
        (("ray::DashboardAgent",), 2, "agents"),
        (("/ray/core/src/ray/raylet/raylet",), 2, "raylet"),
        (("something else",), 2, "others"),
    ],
)
def test_a_process_is_known_by_its_command(command: Sequence[str], owner: int, name: str) -> None:
    sleeping = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", *command])
    process = psutil.Process(sleeping.pid)
    try:
        while not process.cmdline():  # for a moment after exec it has none
            pass
        assert what(process) == (owner, name)
    finally:
        sleeping.kill()
        sleeping.wait()


def test_totals_are_medians_of_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    shares = {(0, "worker"): [1.0, 5.0, 2.0], (0, "gateway"): [1.0, 1.0, 9.0], (1, "a"): [1.0], (2, "b"): [2.0]}
    report(shares, dict.fromkeys(shares, 10.0))
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line]
    assert [(line[0], line[-7], line[-2]) for line in lines] == [
        ("gateway", "1.00", "10"),
        ("worker", "2.00", "10"),
        ("Polyfleet's", "6.00", "20"),
        ("a", "1.00", "10"),
        ("Polyfleet's", "1.00", "10"),
        ("b", "2.00", "10"),
        ("Ray's", "2.00", "10"),
    ]
