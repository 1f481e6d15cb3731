"""The scheduler's state on disk: deployments, tokenizer assets, known workers and their launchers, in one SQLite file.

Every change is durable when its method returns; a process killed at any moment leaves the file whole (WAL). One
Store is used by one thread.
"""

import logging
import shutil
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from polyfleet.scheduler.launcher.launch import LaunchSpec
from polyfleet.scheduler.revisions import numbered
from polyfleet.scheduler.tenants.usage_table import USAGE_TABLES, UsageTable
from polyfleet.v1 import fleet_pb2 as pb

log = logging.getLogger(__name__)

STATE_NAME = "fleet.sqlite"
SCHEMA_VERSION = 1
SHARED_FILE_BYTES = 64 * 1024  # more than what SQLite lays beside its file when it opens it
MAX_UNSAVED_BYTES = 256 * 1024 * 1024  # of tokenizers in memory, where the disk has no room for them
MAX_ASSETS_BYTES = 1024 * 1024 * 1024  # of all tokenizers together
REMOVED_KEPT_SECONDS = 30 * 24 * 3600  # how long a removed deployment's name is remembered
_SCHEMA = """
CREATE TABLE deployments (name TEXT PRIMARY KEY, message BLOB NOT NULL);
CREATE TABLE removed_deployments (name TEXT PRIMARY KEY, removed_unix_seconds INTEGER NOT NULL);
CREATE TABLE assets (hash TEXT PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE workers (worker_id TEXT PRIMARY KEY);
"""
_ADDED = (
    "CREATE TABLE IF NOT EXISTS launches (worker_id TEXT PRIMARY KEY, spec BLOB NOT NULL)",  # older versions: unused
    "CREATE TABLE IF NOT EXISTS lives (generation INTEGER PRIMARY KEY)",  # of one row: the scheduler's last life
    *USAGE_TABLES,
)


class StoreError(RuntimeError):
    """The file can't be used. The message is one sentence for the operator."""


class StoreFullError(StoreError):
    """There is no room for more assets. The message is one sentence."""


class DiskFullError(StoreFullError):
    """Nothing can be written: the disk is full. The message is one sentence."""


class Store:
    """Opens or creates the file. Raises StoreError when it is no database or belongs to a newer Polyfleet."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(OSError):  # of what can't be made SQLite tells the reason
            path.touch(mode=0o600)  # launches have environments, which may hold secrets
        self._path = path
        self._unsaved: dict[str, bytes] = {}
        try:
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._migrate(path)
        except sqlite3.OperationalError as error:  # the file may be well: a full disk, a folder that can't be written
            if _disk_is_full(error, path):
                raise _full(path) from None
            raise StoreError(f"The state file {path} can't be opened: {error}.") from None
        except sqlite3.Error as error:
            raise StoreError(f"The state file {path} can't be used ({error}): move it away or restore it.") from None
        self.usage = UsageTable(self._db, self.writing)

    def _migrate(self, path: Path) -> None:
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise StoreError(f"The state file {path} was written by a newer Polyfleet: upgrade, or use another folder.")
        if version == 0:
            self._db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
        for table in _ADDED:
            self._db.execute(table)
        oldest = int(time.time()) - REMOVED_KEPT_SECONDS
        self._db.execute("DELETE FROM removed_deployments WHERE removed_unix_seconds < ?", (oldest,))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A transaction. Raises DiskFullError, or StoreError where the file can't be written for another reason."""
        try:
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                yield
        except sqlite3.Error as error:
            if _disk_is_full(error, self._path):
                raise _full(self._path) from None
            raise StoreError(f"The state file {self._path} can't be written: {error}.") from None

    def begin_life(self) -> int:
        """Another life of the scheduler: its number, above that of each one before it, on a state that was lost too."""
        number = max(self.generation + 1, int(time.time()))
        try:
            with self.writing():
                self._db.execute("DELETE FROM lives")
                self._db.execute("INSERT INTO lives VALUES (?)", (number,))
        except StoreError as error:
            log.error("Another scheduler on this state would not be noticed: %s", error)
        return number

    @property
    def generation(self) -> int:
        """The number of the last life that began; 0: none has."""
        row = self._db.execute("SELECT generation FROM lives").fetchone()
        return int(row[0]) if row else 0

    def deployments(self) -> tuple[pb.ModelDeployment, ...]:
        """All deployments, by name."""
        rows = self._db.execute("SELECT message FROM deployments ORDER BY name")
        return tuple(numbered(pb.ModelDeployment.FromString(message)) for (message,) in rows)

    def put_deployment(self, deployment: pb.ModelDeployment) -> None:
        """Create or replace the deployment of that name."""
        with self.writing():
            self._db.execute("DELETE FROM removed_deployments WHERE name = ?", (deployment.name,))
            row = (deployment.name, deployment.SerializeToString())
            self._db.execute("INSERT OR REPLACE INTO deployments VALUES (?, ?)", row)

    def remove_deployment(self, name: str) -> bool:
        """Remove it and remember that it was; False when there is none of that name."""
        with self.writing():
            if not self._db.execute("DELETE FROM deployments WHERE name = ?", (name,)).rowcount:
                return False
            row = (name, int(time.time()))
            self._db.execute("INSERT OR REPLACE INTO removed_deployments VALUES (?, ?)", row)
        return True

    def was_removed(self, name: str) -> bool:
        """Whether a deployment of that name was removed, and not created again, in the last 30 days."""
        query = "SELECT 1 FROM removed_deployments WHERE name = ?"
        return self._db.execute(query, (name,)).fetchone() is not None

    def put_asset(self, content_hash: str, data: bytes, in_use: Collection[str] = ()) -> None:
        """Keep tokenizer assets under their hash, which the caller has checked.

        Where MAX_ASSETS_BYTES would be passed, those that are not `in_use` make way. Raises StoreFullError when that
        is not enough, and DiskFullError, but then has kept them in memory if they are not too many.
        """
        try:
            self._save_asset(content_hash, data, in_use)
        except DiskFullError:
            if sum(map(len, self._unsaved.values())) + len(data) <= MAX_UNSAVED_BYTES:
                self._unsaved[content_hash] = data
            raise

    def _save_asset(self, content_hash: str, data: bytes, in_use: Collection[str]) -> None:
        with self.writing():
            if self._assets_bytes() + len(data) > MAX_ASSETS_BYTES:
                idle = [(each,) for (each,) in self._db.execute("SELECT hash FROM assets") if each not in in_use]
                self._db.executemany("DELETE FROM assets WHERE hash = ?", idle)
            if self._assets_bytes() + len(data) > MAX_ASSETS_BYTES:
                raise StoreFullError(f"The fleet's tokenizers may take {MAX_ASSETS_BYTES} bytes in all.")
            self._db.execute("INSERT OR IGNORE INTO assets VALUES (?, ?)", (content_hash, data))

    def _assets_bytes(self) -> int:
        (size,) = self._db.execute("SELECT COALESCE(SUM(LENGTH(data)), 0) FROM assets").fetchone()
        return int(size)

    def has_asset(self, content_hash: str) -> bool:
        """Whether assets of that hash are held."""
        query = "SELECT 1 FROM assets WHERE hash = ?"
        return content_hash in self._unsaved or self._db.execute(query, (content_hash,)).fetchone() is not None

    def asset(self, content_hash: str) -> bytes | None:
        """The assets of that hash; None when they are not held."""
        row = self._db.execute("SELECT data FROM assets WHERE hash = ?", (content_hash,)).fetchone()
        return self._unsaved.get(content_hash) if row is None else bytes(row[0])

    def workers(self) -> frozenset[str]:
        """Ids of the workers that the fleet had when this was last written."""
        return frozenset(worker_id for (worker_id,) in self._db.execute("SELECT worker_id FROM workers"))

    def set_workers(self, worker_ids: Iterable[str]) -> None:
        """Remember which workers the fleet has, so that a returning scheduler knows whom to expect."""
        with self.writing():
            self._db.execute("DELETE FROM workers")
            self._db.executemany("INSERT INTO workers VALUES (?)", ((worker_id,) for worker_id in worker_ids))

    def launches(self) -> dict[str, LaunchSpec]:
        """What each launcher was told, by worker id, when this was last written."""
        rows = self._db.execute("SELECT worker_id, spec FROM launches")
        return {worker_id: spec for worker_id, data in rows if (spec := _spec(data))}

    def set_launches(self, specs: Iterable[LaunchSpec]) -> None:
        """Remember what the launchers were told: a Ray that starts anew knows none of them."""
        rows = [(spec.worker_id, msgspec.json.encode(spec)) for spec in specs]
        with self.writing():
            self._db.execute("DELETE FROM launches")
            self._db.executemany("INSERT INTO launches VALUES (?, ?)", rows)

    def close(self) -> None:
        """Close the file; the Store can't be used after."""
        self._db.close()


def _spec(data: bytes) -> LaunchSpec | None:
    """A stored LaunchSpec; None for one of a version that meant something else."""
    try:
        return msgspec.json.decode(data, type=LaunchSpec)
    except msgspec.DecodeError:
        return None


def _disk_is_full(error: sqlite3.Error, path: Path) -> bool:
    """SQLite calls it an I/O error where it can't make room for the file that its processes share."""
    full = "I/O" in str(error) and shutil.disk_usage(path.parent).free < SHARED_FILE_BYTES
    return full or "full" in str(error)


def _full(path: Path) -> DiskFullError:
    return DiskFullError(f"The disk of the state file {path} is full: make room there, then try again.")
