"""Writer: a thread beside an engine's, which writes what has come into blocks while steps go on."""

import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from polyfleet.engine.executor import BlockImport
from polyfleet.kvcache.portable import Array

POLL_SECONDS = 2e-4


class Writing:
    """One import's numbers, until they are written; `error` says why they could not be."""

    __slots__ = ("_caches", "_read", "error", "importing", "over", "wanted")

    def __init__(self, importing: BlockImport, caches: Sequence[Array], read: Callable[[], None]) -> None:
        """`read`, which raises nothing, is called on the writing thread once `caches` are looked at no more."""
        self.importing, self._caches, self._read = importing, caches, read
        self.over, self.wanted = False, True
        self.error: Exception | None = None

    def run(self) -> None:
        """Write them, unless they are not `wanted` any more."""
        try:
            if self.wanted:
                self.importing.write(self._caches)
        except Exception as error:
            self.error = error
        self._caches = ()
        self._read()
        self.over = True

    def wait(self) -> None:
        """Until it is over."""
        while not self.over:
            time.sleep(POLL_SECONDS)


class Writer:
    """Does one at a time, in the order in which they are given. Its thread begins with the first.

    An engine's thread pays for all this with each block: so it is a queue and a flag, where a pool's futures would
    cost it as much as all its other books.
    """

    def __init__(self) -> None:
        self._given: SimpleQueue[Writing | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def give(self, writing: Writing) -> None:
        """It is written when those before it are."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="kv import", daemon=True)
            self._thread.start()
        self._given.put(writing)

    def close(self) -> None:
        """Once what was given is over."""
        if self._thread is not None:
            self._given.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (writing := self._given.get()) is not None:
            writing.run()
