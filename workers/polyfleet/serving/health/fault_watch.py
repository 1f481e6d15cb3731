"""Counts what a backend's `fault_command` tells: faults of devices, by PCI address and code."""

import json
import logging
import subprocess
import threading
from collections import Counter
from collections.abc import Mapping, Sequence

log = logging.getLogger(__name__)

RESTART_SECONDS = 60.0
JOIN_SECONDS = 1.0


class FaultWatch:
    """Runs the command and listens on a thread; one that fails is run again later, one that ends well is not."""

    def __init__(self, command: Sequence[str], restart_seconds: float = RESTART_SECONDS) -> None:
        self._command = command
        self._restart_seconds = restart_seconds
        self._counts: Counter[tuple[str, str]] = Counter()
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._child: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._run, name="faults", daemon=True)

    def start(self) -> None:
        """Listen until `stop`."""
        self._thread.start()

    def stop(self) -> None:
        """End the command."""
        self._stopping.set()
        with self._lock:
            if self._child is not None:
                self._child.kill()
        self._thread.join(JOIN_SECONDS)

    def of(self, pci_bus_id: str | None) -> Mapping[str, int]:
        """How often each fault of this device was told since the start."""
        return {code: count for (address, code), count in list(self._counts.items()) if address == pci_bus_id}

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if self._listen() == 0:
                    return
            except OSError as error:
                log.warning("Faults of devices are not heard: %s", error)
            self._stopping.wait(self._restart_seconds)

    def _listen(self) -> int:
        """One run of the command; its exit status."""
        with self._lock:
            if self._stopping.is_set():
                return 0
            self._child = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        with self._child as child:
            assert child.stdout is not None
            for line in child.stdout:
                self._hear(line)
        return child.returncode

    def _hear(self, line: str) -> None:
        try:
            told = json.loads(line)
            address, code = str(told["pci_bus_id"]), str(told["code"])
        except (ValueError, KeyError, TypeError):
            return
        self._counts[address, code] += 1
        log.error("The device at %s has a fault: %s.", address, code)
