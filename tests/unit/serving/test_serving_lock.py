"""One live worker per lock file."""

import json
import multiprocessing
import os
import subprocess
from pathlib import Path

import psutil
import pytest

from polyfleet.process.worker_lock import read_lock, start_of
from polyfleet.serving.lock import LockedError, LockFile


def test_content_is_what_adopters_read(tmp_path: Path) -> None:
    path = tmp_path / "workers" / "w-1.json"
    lock = LockFile(path)
    lock.acquire("w-1", "127.0.0.1:5", "127.0.0.1:6")
    content = json.loads(path.read_text())
    assert content.pop("started") == pytest.approx(psutil.Process().create_time(), abs=2)
    assert content.pop("start") == start_of(os.getpid())
    want = {"worker_id": "w-1", "pid": os.getpid(), "address": "127.0.0.1:5", "metrics_address": "127.0.0.1:6"}
    assert content == want
    assert [each.name for each in path.parent.iterdir()] == ["w-1.json"]
    lock.release()
    assert not path.exists()


def test_a_live_holder_is_named(tmp_path: Path) -> None:
    LockFile(tmp_path / "lock").acquire("w-1", "a", "")
    with pytest.raises(LockedError, match=rf"Worker w-1 \(pid {os.getpid()}\) holds .*lock already"):
        LockFile(tmp_path / "lock").check()


@pytest.mark.parametrize(
    "change",
    [
        {"pid": 2**22 + 1},
        {"pid": -1},
        {"start": f"{start_of(os.getpid())}0"},
        {"start": f"another boot:{start_of(os.getpid()).rpartition(':')[2]}"},
        {"start": "", "started": 12.0},
    ],
    ids=["gone", "no pid", "pid used again", "another boot", "pid used again since a worker of before `start`"],
)
def test_a_stale_file_is_taken_over(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "lock"
    LockFile(path).acquire("w-1", "a", "")
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    LockFile(path).acquire("w-2", "b", "")
    record = read_lock(path)
    assert record is not None
    assert (record.worker_id, record.alive) == ("w-2", True)


@pytest.mark.parametrize("change", [{"started": 12.0}, {"start": ""}], ids=["the clock was set", "before `start`"])
def test_a_live_holder_is_one_still(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "lock"
    LockFile(path).acquire("w-1", "a", "")
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(LockedError, match="holds"):
        LockFile(path).check()


def test_a_start_is_found_behind_any_name(tmp_path: Path) -> None:
    program = tmp_path / "a) 1 (b"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "30"]) as process:
        try:
            assert start_of(process.pid) == start_of(process.pid) != start_of(os.getpid())
        finally:
            process.kill()


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"pid": "x"}'])
def test_garbage_is_no_holder(tmp_path: Path, content: str) -> None:
    (tmp_path / "lock").write_text(content)
    LockFile(tmp_path / "lock").acquire("w-1", "a", "")


def test_an_unusable_path_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(LockedError, match="folder can't be read: Is a directory"):
        LockFile(tmp_path / "folder").check()
    with pytest.raises(LockedError, match="can't be written: "):
        LockFile(tmp_path / "file" / "lock").acquire("w-1", "a", "")


def test_release_leaves_anothers_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = LockFile(path)
    lock.acquire("w-1", "a", "")
    path.write_text(path.read_text().replace("w-1", "w-2"))
    lock.release()
    assert path.exists()


def test_of_many_at_once_one_wins(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    results, go, end = context.SimpleQueue(), context.Event(), context.Event()

    def contend() -> None:
        go.wait()
        try:
            LockFile(tmp_path / "lock").acquire(f"w-{os.getpid()}", "a", "")
            results.put("held")
        except LockedError:
            results.put("refused")
        end.wait()

    contenders = [context.Process(target=contend) for _ in range(4)]
    for each in contenders:
        each.start()
    go.set()
    outcomes = sorted(results.get() for _ in contenders)
    end.set()
    for each in contenders:
        each.join()
    assert outcomes == ["held", "refused", "refused", "refused"]
