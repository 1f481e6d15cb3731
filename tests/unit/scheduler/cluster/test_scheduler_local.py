"""LocalScheduler with a stand-in for its process: what it makes of its words and its ends."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace
from tests.support.serve_process import alive

from polyfleet.process.config import ConfigError
from polyfleet.scheduler import marks
from polyfleet.scheduler.cluster import local as local_scheduler
from polyfleet.scheduler.cluster.local import START_TRIES, LocalScheduler, made_ray_folder
from polyfleet.scheduler.config import SchedulerConfig, fleet_id
from polyfleet.scheduler.marks import FLEET_ID, RAY_FOLDER, end_workers, kill_marked, marked

ANY_PORTS = SchedulerConfig(listen="127.0.0.1:0", metrics_listen="127.0.0.1:0")
UP = '{"ray": "127.0.0.1:1"}'
LOST = '{"lost": "Ray did not start: no room."}'


class Sleepers:
    """Processes in sessions of their own that do nothing; those that are `deaf` ignore SIGTERM."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, environment: dict[str, str], *, deaf: bool = False) -> psutil.Process:
        ignore = "signal.signal(15, signal.SIG_IGN);" if deaf else ""
        code = f"import signal, time; {ignore} print(flush=True); time.sleep(600)"
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.processes.append(process)
        assert process.stdout
        process.stdout.readline()
        return psutil.Process(process.pid)


@pytest.fixture
def sleepers() -> Iterator[Sleepers]:
    started = Sleepers()
    yield started
    for process in started.processes:
        process.kill()
        process.communicate()


# Prints its argument; if that says that it is up, waits for the end of its input, or for last words to print.
PROGRAM = """
import os, select, sys
print(sys.argv[1], flush=True)
if '"ray"' in sys.argv[1]:
    while not os.path.exists(sys.argv[2]) and not select.select([sys.stdin], [], [], 0.01)[0]:
        pass
    if os.path.exists(sys.argv[2]):
        print(open(sys.argv[2]).read(), flush=True)
        os.unlink(sys.argv[2])
"""


class StandIn(LocalScheduler):
    """Its n-th process prints the n-th of these texts, the last one for ever."""

    def __init__(self, folder: Path, *texts: str) -> None:
        super().__init__(replace(ANY_PORTS, state_dir=str(folder)))
        self._texts = texts
        self.starts = 0

    def _command(self, config_file: str) -> list[str]:
        text = self._texts[min(self.starts, len(self._texts) - 1)]
        self.starts += 1
        return [sys.executable, "-c", PROGRAM, text, str(self.config.state_path / "last")]


def test_ray_that_fails_is_tried_again(tmp_path: Path) -> None:
    local = StandIn(tmp_path, LOST, LOST, f"Ray says something.\n{UP}")
    with local:
        assert (local.starts, local.ray_address, local.running) == (3, "127.0.0.1:1", True)
        assert local.revive() == ""
    assert not local.running
    assert not (tmp_path / "ray").is_symlink()


def test_ray_that_fails_again_and_again_is_given_up(tmp_path: Path) -> None:
    local = StandIn(tmp_path, LOST)
    with pytest.raises(ConfigError, match=r"^Ray did not start: no room\. .*scheduler-process\.log says more\.$"):
        local.start()
    assert local.starts == START_TRIES
    assert not (tmp_path / "ray").is_symlink()


@pytest.mark.parametrize(
    ("text", "problem"),
    [('{"error": "It is wrong."}', r"^It is wrong\.$"), ("", r"^The scheduler did not start\. .*log says more\.$")],
)
def test_what_no_second_try_helps_is_said_at_once(tmp_path: Path, text: str, problem: str) -> None:
    local = StandIn(tmp_path, text, UP)
    with pytest.raises(ConfigError, match=problem):
        local.start()
    assert local.starts == 1


@pytest.mark.parametrize(("last_words", "why"), [(LOST, "Ray did not start: no room."), ("", "ended with code 0")])
def test_a_process_that_ends_is_started_again(tmp_path: Path, last_words: str, why: str) -> None:
    with StandIn(tmp_path, UP) as local:
        folder = os.readlink(tmp_path / "ray")
        (tmp_path / "last.new").write_text(f"Ray says something.\n{last_words}")
        (tmp_path / "last.new").rename(tmp_path / "last")
        while local.running:
            time.sleep(0.01)
        assert why in local.revive()
        assert local.running
        assert os.readlink(tmp_path / "ray") != folder
        assert not os.path.exists(folder)


def test_what_serves_on_has_more_tries(tmp_path: Path) -> None:
    local = StandIn(tmp_path, UP, *[LOST] * (START_TRIES + 1), UP)
    with local:
        (tmp_path / "last.new").write_text(LOST)
        (tmp_path / "last.new").rename(tmp_path / "last")
        while local.running:
            time.sleep(0.01)
        assert local.revive() == "Ray did not start: no room."
        assert (local.starts, local.running) == (START_TRIES + 3, True)


def test_when_it_can_not_be_started_again_its_workers_end_too(
    tmp_path: Path, sleepers: Sleepers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_scheduler, "REVIVE_SECONDS", 0.0)
    local = StandIn(tmp_path, UP, LOST)
    local.start()
    worker = sleepers.start({FLEET_ID: fleet_id(tmp_path)})
    (tmp_path / "last").write_text(LOST)
    while local.running:
        time.sleep(0.01)
    with pytest.raises(ConfigError):
        local.revive()
    assert alive(worker)
    local.shutdown()
    assert not alive(worker)
    assert not (tmp_path / "ray").is_symlink()


def test_what_is_no_link_to_a_folder_of_ray_is_left_alone(tmp_path: Path) -> None:
    kept = tmp_path / "ray" / "mine"
    kept.mkdir(parents=True)
    local = StandIn(tmp_path, UP)
    with pytest.raises(ConfigError, match=r"/ray is no link to the folder of a Ray: move it away\.$"):
        local.start()
    local.shutdown()
    assert (local.starts, kept.is_dir()) == (0, True)


def test_what_a_killed_one_left_is_ended_at_the_next_start(tmp_path: Path, sleepers: Sleepers) -> None:
    folder = made_ray_folder()
    (tmp_path / "ray").symlink_to(folder)
    part = sleepers.start({RAY_FOLDER: folder})
    worker = sleepers.start({FLEET_ID: fleet_id(tmp_path)})
    other = sleepers.start({FLEET_ID: fleet_id(tmp_path / "other"), RAY_FOLDER: f"{folder}-other"})
    with StandIn(tmp_path, UP):
        assert not os.path.exists(folder)
        assert [alive(part), alive(worker), alive(other)] == [False, False, True]


def test_a_mark_is_inherited_and_kills(sleepers: Sleepers) -> None:
    one, two, other = (sleepers.start({RAY_FOLDER: value}) for value in ("/mark", "/mark", "/other"))
    assert {each.pid for each in marked(RAY_FOLDER, "/mark")} == {one.pid, two.pid}
    kill_marked(RAY_FOLDER, "/mark")
    assert [alive(one), alive(two), alive(other)] == [False, False, True]


def test_workers_end_those_that_do_not_heed_too(
    tmp_path: Path, sleepers: Sleepers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marks, "TERMINATE_SECONDS", 0.2)
    mark = {FLEET_ID: fleet_id(tmp_path)}
    workers = [sleepers.start(mark), sleepers.start(mark, deaf=True)]
    other = sleepers.start({FLEET_ID: fleet_id(tmp_path / "other")})
    end_workers(tmp_path, 0.2)
    assert [alive(each) for each in workers] == [False, False]
    assert alive(other)
