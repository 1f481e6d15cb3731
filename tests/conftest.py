"""In which order files run, and which of them stay together, where several processes share them (`make test`).

Half of the files compute and half wait for processes: one of each at a time uses all cores. Either half begins with
its longest files, so that no process is left with one of them at the end.
"""

import gc
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

SLOW_SECONDS = 900  # against hanging, of a test that takes minutes where others use the machine
WAITING = ("tests/e2e", "tests/integration")
LONGEST = (
    "tests/e2e/test_e2e_lifecycle.py",
    "tests/integration/wire/test_signals_at_start.py",
    "tests/integration/scheduler/test_scheduler_ray.py",
    "tests/integration/engine/test_engine_tokens.py",
    "tests/unit/kernels/triton/test_interpreted.py",
    "tests/unit/kernels/triton/test_triton.py",
    "tests/e2e",
    "tests/integration/monitoring",
)
# They talk to one stack, `stack` of tests/e2e/conftest.py, which takes longer to start than they take together.
ONE_STACK = ("commands", "doors", "gateway_alone", "grpc", "openai", "sharing")

BROWSED = "tests/integration/console/pages"  # they share a stack, too


def ordered(files: Sequence[str]) -> list[str]:
    """Paths in the order in which to run them: waiting ones spread among the others, the longest of each first."""
    halves: tuple[list[str], list[str]] = ([], [])
    for file in files:
        halves[file.startswith(WAITING)].append(file)
    for half in halves:
        half.sort(key=lambda file: next((n for n, each in enumerate(LONGEST) if file.startswith(each)), len(LONGEST)))
    places = {file: (place / len(half)) for half in halves for place, file in enumerate(half)}
    return sorted(halves[1] + halves[0], key=lambda file: places[file])


def unit_of_work(file: str) -> str:
    """What one process runs as a whole: a file, or those that share a stack."""
    if file.startswith(BROWSED):
        return BROWSED
    name = Path(file).stem.removeprefix("test_e2e_")
    return "tests/e2e" if file.startswith("tests/e2e/") and name in ONE_STACK else file


def file_of(node_id: str) -> str:
    """Path of a test's file."""
    return node_id.split("::", 1)[0]


def pytest_configure() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests hang up what they start, which ignores that under nohup


def pytest_collection() -> None:
    gc.disable()  # it would look again and again at the modules and tests that come, of which none goes


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    files = list(dict.fromkeys(file_of(item.nodeid) for item in items))
    places = {file: place for place, file in enumerate(ordered(files))}
    items.sort(key=lambda item: places[file_of(item.nodeid)])
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_SECONDS))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Why tests had a second try: each is a race to be looked into, in the test or in what it tests."""
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.section(f"failed at first: {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    class UnitsOfWork(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return unit_of_work(file_of(nodeid))

    return UnitsOfWork(config, log)
