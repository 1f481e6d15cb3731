"""Giver: an engine on a thread of its own that gives prefixes to others, for tests."""

import threading

from polyfleet.engine.engine import Engine
from polyfleet.transfer.room import TransferRoom
from polyfleet.transfer.settings import TransferSettings
from polyfleet.wire.tickets import TransferOffer


class Giver:
    """Steps its engine where there is work, unless it is paused; `offer` says where it gives."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.room = TransferRoom(TransferSettings("127.0.0.1:0"))
        engine.attend(self.room)
        self.offer = TransferOffer(f"127.0.0.1:{self.room.port}", self.room.local, self.room.key)
        self.paused = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.001):
            if self.engine.has_work and not self.paused.is_set():
                self.engine.step()

    def close(self) -> None:
        """End the thread; the books must balance."""
        self._stop.set()
        self._thread.join()
        self.room.close()
        self.engine.check()
