"""Logs that stay small under writers that know nothing of it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from polyfleet.scheduler.log_files import WORKER_LOGS_KEPT, bound

WRITER = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"


def test_a_childs_output_is_turned_over_while_it_writes_on(tmp_path: Path) -> None:
    path = tmp_path / "gateway.log"
    with (
        path.open("ab") as log,
        subprocess.Popen([sys.executable, "-c", WRITER], stdin=subprocess.PIPE, stdout=log, text=True) as child,
    ):
        assert child.stdin
        for number in range(3):
            child.stdin.write(f"{number}" * 199 + "\n")
            child.stdin.flush()
            while not path.stat().st_size:
                time.sleep(0.01)
            bound(tmp_path, max_bytes=100)
            assert path.stat().st_size == 0
            assert (tmp_path / "gateway.log.1").read_text() == f"{number}" * 99 + "\n"
        child.stdin.write("last\n")
        child.stdin.close()
    assert path.read_text() == "last\n"


def test_a_short_log_and_other_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("x" * 100)
    (tmp_path / "b.txt").write_text("x" * 1000)
    bound(tmp_path, max_bytes=100)
    assert {path.name: path.stat().st_size for path in tmp_path.iterdir()} == {"a.log": 100, "b.txt": 1000}


def test_what_was_private_stays_private(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("x" * 1000)
    path.chmod(0o600)
    bound(tmp_path, max_bytes=100)
    assert (tmp_path / "a.log.1").stat().st_mode & 0o777 == 0o600


def test_logs_of_workers_long_gone_are_dropped_but_the_newest(tmp_path: Path) -> None:
    now = time.time()
    for number in range(WORKER_LOGS_KEPT + 2):
        for name in (f"worker-{number}.log", f"worker-{number}.log.1"):
            (tmp_path / name).touch()
            os.utime(tmp_path / name, (now, now - (number + 2) * 24 * 3600))
    (tmp_path / "scheduler.log").touch()
    os.utime(tmp_path / "scheduler.log", (0, 0))
    bound(tmp_path)
    assert len(list(tmp_path.glob("worker-*.log"))) == len(list(tmp_path.glob("worker-*.log.1"))) == WORKER_LOGS_KEPT
    assert (tmp_path / "worker-0.log").exists()
    assert (tmp_path / "scheduler.log").exists()


@pytest.mark.parametrize("folder", ["none", "file"])
def test_a_folder_that_is_not_there_is_no_failure(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").touch()
    bound(tmp_path / folder)
