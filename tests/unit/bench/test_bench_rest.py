"""The table of a fleet at rest: whose process is whose, and what the columns add up to."""

import subprocess
import sys
from collections.abc import Sequence

import psutil
import pytest
from bench.rest import rows, what


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


def test_totals_are_medians_of_rounds() -> None:
    shares = {(0, "worker"): [1.0, 5.0, 2.0], (0, "gateway"): [1.0, 1.0, 9.0], (1, "a"): [1.0], (2, "b"): [2.0]}
    found = [(row.name, row.value, row.unit) for row in rows(shares, dict.fromkeys(shares, 10.0))]
    assert found[::2] == [
        ("gateway", 1.0, "% of a core"),
        ("worker", 2.0, "% of a core"),
        ("all Polyfleet's processes", 6.0, "% of a core"),
        ("a", 1.0, "% of a core"),
        ("all Polyfleet's actors", 1.0, "% of a core"),
        ("b", 2.0, "% of a core"),
        ("all Ray's processes", 2.0, "% of a core"),
    ]
    assert [each[1:] for each in found[1::2]] == [(number, "MB") for number in (10, 10, 20, 10, 10, 10, 10)]
