"""The state file: what is written is there after a kill, a damaged or newer file is refused in words."""

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from polyfleet.scheduler.config import LaunchConfig
from polyfleet.scheduler.launcher.launch import LaunchSpec
from polyfleet.scheduler.revisions import numbered
from polyfleet.scheduler.store import DiskFullError, Store, StoreError, StoreFullError
from polyfleet.v1 import fleet_pb2 as pb

WISH = pb.ModelDeployment(name="a", source="/m.gguf", workers=2, accelerators=["cpu"], created_unix_seconds=7)


def first(wish: pb.ModelDeployment) -> pb.ModelDeployment:
    """As it is read where an older version wrote it, which knew no revisions."""
    read = pb.ModelDeployment()
    read.CopyFrom(wish)
    return numbered(read)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "fleet.sqlite"


def test_deployments_come_back_as_they_were_by_name(path: Path) -> None:
    store = Store(path)
    other = pb.ModelDeployment(name="0", source="/n.gguf")
    store.put_deployment(WISH)
    store.put_deployment(other)
    store.close()
    assert Store(path).deployments() == (first(other), first(WISH))


def test_each_life_has_a_higher_number_and_the_one_before_can_see_it(path: Path) -> None:
    first = Store(path)
    begun = first.begin_life()
    assert first.generation == begun
    assert Store(path).begin_life() > begun
    assert first.generation > begun


def test_a_life_on_a_lost_state_has_a_higher_number_than_those_before(path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("polyfleet.scheduler.store.time.time", lambda: 5000.0)
    before = [Store(path).begin_life() for _ in range(3)]
    path.unlink()
    monkeypatch.setattr("polyfleet.scheduler.store.time.time", lambda: 5010.0)
    assert before == [5000, 5001, 5002]
    assert Store(path).begin_life() == 5010


def test_a_life_begins_where_nothing_can_be_written(path: Path) -> None:
    store = Store(path)
    store._db.execute("PRAGMA query_only = ON")
    assert store.begin_life() > 0
    assert store.generation == 0


def test_putting_again_replaces(path: Path) -> None:
    store = Store(path)
    store.put_deployment(WISH)
    changed = pb.ModelDeployment(name="a", source="/other.gguf")
    store.put_deployment(changed)
    assert store.deployments() == (first(changed),)


def test_a_removed_deployment_is_remembered_until_it_is_created_again(path: Path) -> None:
    store = Store(path)
    assert not store.remove_deployment("a")
    assert not store.was_removed("a")
    store.put_deployment(WISH)
    assert store.remove_deployment("a")
    assert store.deployments() == ()
    assert store.was_removed("a")
    store.put_deployment(WISH)
    assert not store.was_removed("a")


def test_assets_are_kept_by_hash(path: Path) -> None:
    store = Store(path)
    assert store.asset("h") is None
    assert not store.has_asset("h")
    store.put_asset("h", b"\0data")
    store.put_asset("h", b"\0data")
    assert store.asset("h") == b"\0data"
    assert store.has_asset("h")


def fill(store: Store, *, full: bool = True) -> None:
    """Let the file grow no more, as on a full disk; or let it again."""
    pages = 0 if full else 10_000
    store._db.execute(f"PRAGMA max_page_count = {pages or store._db.execute('PRAGMA page_count').fetchone()[0]}")


def test_a_full_disk_is_said_and_what_was_written_stays(path: Path) -> None:
    store = Store(path)
    store.put_deployment(WISH)
    fill(store)
    large = pb.ModelDeployment(name="large", source="/m" * 100_000)
    with pytest.raises(DiskFullError, match=r"The disk of the state file .*fleet\.sqlite is full: make room there"):
        store.put_deployment(large)
    assert store.deployments() == (first(WISH),)
    fill(store, full=False)
    store.put_deployment(large)
    assert len(store.deployments()) == 2


def test_a_disk_without_room_to_open_the_file_is_said(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr("sqlite3.connect", connect)
    with pytest.raises(StoreError, match=r"can't be opened: disk I/O error\.$"):
        Store(path)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=20_000))
    with pytest.raises(DiskFullError, match=r"The disk of the state file .* is full: make room there"):
        Store(path)


def test_tokenizers_are_served_from_memory_while_the_disk_is_full(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyfleet.scheduler.store.MAX_UNSAVED_BYTES", 250_000)
    store = Store(path)
    fill(store)
    for name in ("a", "b"):
        with pytest.raises(DiskFullError):
            store.put_asset(name, name.encode() * 200_000)
    assert (store.has_asset("a"), store.asset("a")) == (True, b"a" * 200_000)
    assert (store.has_asset("b"), store.asset("b")) == (False, None)


def test_a_file_that_cannot_be_written_is_said(path: Path) -> None:
    store = Store(path)
    store._db.execute("PRAGMA query_only = ON")
    with pytest.raises(StoreError, match=r"fleet\.sqlite can't be written: attempt to write a readonly database\.$"):
        store.put_deployment(WISH)


def test_assets_that_nobody_uses_make_way_and_the_file_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyfleet.scheduler.store.MAX_ASSETS_BYTES", 10)
    store = Store(path)
    store.put_asset("used", b"12345")
    store.put_asset("idle", b"12345")
    store.put_asset("new", b"12345", in_use={"used"})
    assert [store.has_asset(each) for each in ("used", "idle", "new")] == [True, False, True]
    with pytest.raises(StoreFullError, match="may take 10 bytes"):
        store.put_asset("more", b"1", in_use={"used", "new"})
    assert not store.has_asset("more")


def test_workers_are_replaced_as_a_whole(path: Path) -> None:
    store = Store(path)
    store.set_workers(["w-1", "w-2"])
    store.set_workers(["w-2", "w-3"])
    assert store.workers() == {"w-2", "w-3"}
    store.set_workers([])
    assert store.workers() == frozenset()


def test_launches_come_back_as_they_were_and_are_replaced_as_a_whole(path: Path) -> None:
    launch = LaunchConfig(interpreter="/opt/python", environment={"A": "b"})
    one, two = (LaunchSpec(f"w-{n}", "cpu", b"\x00\xff", launch, "127.0.0.1:1", "/state", place=n) for n in (1, 2))
    with closing(Store(path)) as store:
        store.set_launches([one, two])
    with closing(Store(path)) as store:
        assert store.launches() == {"w-1": one, "w-2": two}
        store.set_launches([two])
        assert store.launches() == {"w-2": two}


def test_launches_of_another_version_count_for_nothing(path: Path) -> None:
    with closing(Store(path)):
        pass
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("INSERT INTO launches VALUES ('w-1', ?)", (b'{"worker_id": 1}',))
    with closing(Store(path)) as store:
        assert store.launches() == {}


def test_what_was_written_survives_kill_9(path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path\n"
        "from polyfleet.scheduler.store import Store; from polyfleet.v1 import fleet_pb2 as pb\n"
        "store = Store(Path(sys.argv[1]))\n"
        "for i in range(50): store.put_deployment(pb.ModelDeployment(name=f'd-{i:02}', source='/m'))\n"
        "store._db.execute('BEGIN'); store._db.execute('DELETE FROM deployments')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert [deployment.name for deployment in Store(path).deployments()] == [f"d-{i:02}" for i in range(50)]


def test_a_file_that_is_no_database_is_refused_in_words(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"not a database, and long enough to be looked at" * 20)
    with pytest.raises(StoreError, match=r"fleet\.sqlite can't be used \(file is not a database\): move it away"):
        Store(path)


def test_a_file_that_can_not_be_opened_is_refused_without_blaming_the_file(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(StoreError, match=r"fleet\.sqlite can't be opened: unable to open database file\.$"):
        Store(path)


def test_only_its_user_can_read_a_new_file(path: Path) -> None:
    before = os.umask(0)
    try:
        store = Store(path)
        store.put_deployment(WISH)
        modes = {each.name: each.stat().st_mode & 0o777 for each in [path.parent, *path.parent.iterdir()]}
        store.close()
    finally:
        os.umask(before)
    assert modes == {"state": 0o700} | {f"fleet.sqlite{rest}": 0o600 for rest in ("", "-wal", "-shm")}


def test_a_newer_file_is_refused_in_words(path: Path) -> None:
    Store(path).close()
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="written by a newer Polyfleet"):
        Store(path)
