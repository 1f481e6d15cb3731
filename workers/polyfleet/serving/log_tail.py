"""The last lines that a worker process and its engine process have logged, for whoever asks. Bounded; never blocks."""

import asyncio
import logging
import os
from collections import deque
from contextlib import suppress

from polyfleet.process.logs import JsonFormatter

DESCRIPTOR_VARIABLE = "POLYFLEET_LOG_DESCRIPTOR"  # of a pipe that an engine process writes its lines to, too
MAX_LINES = 1000
MAX_LINE_BYTES = 16 * 1024
READ_BYTES = 64 * 1024


class LogTail(logging.Handler):
    """Keeps the last lines, as JSON whatever a terminal shows."""

    def __init__(self, most: int = MAX_LINES) -> None:
        super().__init__()
        self._lines: deque[str] = deque(maxlen=most)

    def install(self, process: str) -> None:
        """Keep what this process logs from now on."""
        self.setFormatter(JsonFormatter(process))
        logging.getLogger().addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """One line of this process."""
        self.add(self.format(record))

    def add(self, line: str) -> None:
        """One line of any."""
        self._lines.append(line[:MAX_LINE_BYTES])

    def last(self, count: int) -> list[str]:
        """The last so many lines, the latest last."""
        lines = list(self._lines)
        return lines[-count:] if count else []


TAIL = LogTail()  # as logging is the process's, so is its tail


class EngineLines:
    """A pipe for one engine process's lines, which are added to a tail as they come."""

    def __init__(self, tail: LogTail = TAIL) -> None:
        self._tail = tail
        self._reading, self.descriptor = os.pipe()  # `descriptor` is for the engine process to inherit
        self._rest = b""

    def listen(self) -> None:
        """Read on the event loop, once the engine process has its end."""
        os.close(self.descriptor)
        os.set_blocking(self._reading, False)
        asyncio.get_running_loop().add_reader(self._reading, self._read)

    def close(self) -> None:
        """Read what is left and end; may be called again."""
        if self._reading >= 0:
            self._read()
        self._end()

    def _end(self) -> None:
        if self._reading >= 0:
            asyncio.get_running_loop().remove_reader(self._reading)
            os.close(self._reading)
            self._reading = -1

    def _read(self) -> None:
        try:
            data = os.read(self._reading, READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._end()
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[:MAX_LINE_BYTES]
        for line in lines:
            self._tail.add(line.decode(errors="replace"))


class PipeHandler(logging.Handler):
    """Writes JSON lines to a pipe; what finds no room is left out, for an engine must never wait for its log."""

    def __init__(self, descriptor: int, process: str) -> None:
        super().__init__()
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self.setFormatter(JsonFormatter(process))

    def emit(self, record: logging.LogRecord) -> None:
        """One line."""
        with suppress(OSError):
            os.write(self._descriptor, self.format(record).encode(errors="replace")[:MAX_LINE_BYTES] + b"\n")


def copy_lines(process: str) -> None:
    """In an engine process: log to the worker's tail too, where it has given a pipe."""
    if (descriptor := os.environ.pop(DESCRIPTOR_VARIABLE, "")).isdecimal():
        logging.getLogger().addHandler(PipeHandler(int(descriptor), process))
