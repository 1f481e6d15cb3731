"""DiskTier: blocks that are kept on local disk, written and read on a thread of its own, so that no step waits."""

import logging
import os
import shutil
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from polyfleet.kvcache.block_files import BadBlock, BlockFiles, claim, is_claimed
from polyfleet.kvcache.portable import Array, KvLayout

log = logging.getLogger(__name__)
RETRY_SECONDS = 60.0  # after which a disk that could not be written to is tried again
CLOSING_SECONDS = 10.0
_MOST_PENDING = 256 << 20  # bytes that wait to be written; what is evicted meanwhile is not kept


class DiskRead:
    """Blocks of a chain that are being read: `take` them until `over`."""

    def __init__(self, names: Sequence[bytes]) -> None:
        self.names, self.over, self.abandoned = names, False, False
        self._found: deque[tuple[bytes, tuple[Array, ...]]] = deque()

    def take(self) -> tuple[bytes, tuple[Array, ...]] | None:
        """The next block's hash and contents; None: nothing yet."""
        return self._found.popleft() if self._found else None

    def give(self, name: bytes, caches: tuple[Array, ...]) -> None:
        """The next block, in the chain's order."""
        self._found.append((name, caches))


class DiskTier:
    """Blocks in a folder below `directory`, at most `most_bytes`; 0: half of what is free there now.

    Whatever fails there is counted in `problems`, and logged once until it is well again: the engine computes. A
    folder that is removed meanwhile is made again. One thread's, beside its own.
    """

    def __init__(self, directory: Path, layout: KvLayout, block_size: int, most_bytes: int = 0) -> None:
        """Raises OSError where there can be no such folder."""
        self._directory, (folder, self._lock) = directory, claim(directory)
        self.problems = Counter[str]()
        self._said = dict[str, str]()  # by problem, what was logged last
        most_bytes = most_bytes or shutil.disk_usage(folder).free // 2
        self._files_in = partial(BlockFiles, layout=layout, block_size=block_size, most_bytes=most_bytes)
        self._folder, self._files = folder, self._files_in(folder)
        self._block_bytes = max(1, block_size * layout.token_bytes)
        self._reads: deque[DiskRead] = deque()
        self._writes: deque[tuple[bytes, tuple[Array, ...]]] = deque()
        self._news, self._closed, self._writes_from = threading.Condition(), False, 0.0
        self._thread = threading.Thread(target=self._run, name="disk tier", daemon=True)
        self._thread.start()
        if most_bytes < self._block_bytes:
            self._fails("unwritable", f"there is room for {most_bytes} bytes, less than one block takes")

    def __len__(self) -> int:
        return len(self._files)

    def known(self, names: Sequence[bytes]) -> int:
        """How many of these blocks are here, from the first on."""
        return next((count for count, each in enumerate(names) if each not in self._files), len(names))

    def put(self, name: bytes, caches: tuple[Array, ...]) -> None:
        """Keep a block, once there is time for it: of each cache [2, block_size, kv heads, width]."""
        if name in self._files or (len(self._writes) + 1) * self._block_bytes > _MOST_PENDING:
            return
        with self._news:
            self._writes.append((name, caches))
            self._news.notify()

    def read(self, names: Sequence[bytes]) -> DiskRead:
        """Begin to read blocks; it ends before the first that can't be."""
        read = DiskRead(names)
        with self._news:
            self._reads.append(read)
            self._news.notify()
        return read

    def close(self) -> None:
        """Write what waits for it, for a while; then the folder is another process's."""
        if self._closed:
            return
        with self._news:
            self._closed = True
            self._news.notify()
        self._thread.join(CLOSING_SECONDS)
        os.close(self._lock)

    def _run(self) -> None:
        try:
            self._scan()
        except OSError as error:
            self._fails("unreadable", error)
        while True:
            with self._news:
                self._news.wait_for(lambda: self._closed or self._reads or self._writes)
                if self._closed and not self._writes:
                    return
                read = self._reads.popleft() if self._reads else None
                write = self._writes.popleft() if read is None else None
            try:
                if read is not None:
                    self._read(read)
                elif write is not None and time.monotonic() >= self._writes_from:
                    self._write(*write)
            except Exception:
                log.exception("The disk tier failed.")
            finally:
                if read is not None:
                    read.over = True

    def _scan(self) -> None:
        for line in self._files.scan():
            log.info("Of the KV blocks on disk %s.", line)

    def _keep_folder(self) -> None:
        """Claim a folder again where this one was removed, or is another's now. Raises OSError; nothing is known then.

        What stands in it is not this process's any more: another one may have made it.
        """
        if is_claimed(self._folder, self._lock):
            return
        self._say("removed", f"The KV blocks in {self._folder} were removed by somebody, so prompts are computed.")
        self._files = self._files_in(self._folder)
        folder, lock = claim(self._directory)
        os.close(self._lock)
        self._folder, self._lock, self._files = folder, lock, self._files_in(folder)
        self._scan()

    def _read(self, read: DiskRead) -> None:
        for name in read.names:
            if read.abandoned or self._closed:
                return
            try:
                read.give(name, self._files.read(name))
            except BadBlock as error:
                self._fails("refused", f"{name.hex()}.kv is not used: {error}")
                return
            except OSError as error:
                self._fails("unreadable", error)
                with suppress(OSError):  # which the next block that is written tells
                    self._keep_folder()
                return

    def _write(self, name: bytes, caches: tuple[Array, ...]) -> None:
        try:
            self._keep_folder()
            self._files.write(name, caches)
        except OSError as error:
            self._writes_from = time.monotonic() + RETRY_SECONDS
            self._fails("unwritable", error)
        else:
            self._said.clear()

    def _fails(self, problem: str, reason: object) -> None:
        self.problems[problem] += 1
        self._say(problem, f"The KV blocks in {self._folder} are {problem}, so prompts are computed: {reason}.")

    def _say(self, problem: str, line: str) -> None:
        """What is not what was said of it last."""
        if self._said.get(problem) != line:
            self._said[problem] = line
            log.warning("%s", line)
