"""What a test's own process logs while it is treated badly: no line above a warning, no traceback."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


class _Faults(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it when it tells of a fault."""
        if record.exc_info or record.levelno >= logging.ERROR:
            self.lines.append(self.format(record))


@contextmanager
def no_faults_logged() -> Iterator[list[str]]:
    """The faults logged so far; at the end there must be none."""
    handler = _Faults()
    logging.getLogger().addHandler(handler)
    try:
        yield handler.lines
    finally:
        logging.getLogger().removeHandler(handler)
    assert handler.lines == []
