"""Addresses for processes that tests start a while later: of ports that no connection takes meanwhile.

The kernel gives a connection, and who listens on port 0, one of 32768 and up. These lie below, each is given once, and
the processes that share a run of tests take turns at them.
"""

import errno
import os
import random
import re
import socket
from itertools import count

LOWEST, NUMBER, TURNS = 10_000, 22_000, 16
_TURN = int(re.sub(r"\D", "", os.environ.get("PYTEST_XDIST_WORKER", "")) or 0) % TURNS
_PLACES = count(random.SystemRandom().randrange(NUMBER // TURNS))


def free_address() -> str:
    """host:port on loopback that nothing listens on."""
    while True:
        port = LOWEST + _TURN + next(_PLACES) * TURNS % NUMBER
        try:
            with socket.create_server(("127.0.0.1", port)):
                return f"127.0.0.1:{port}"
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise


def free_addresses(number: int) -> list[str]:
    """So many of them."""
    return [free_address() for _ in range(number)]
