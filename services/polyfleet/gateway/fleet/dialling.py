"""How sessions reach their workers. Who dials is given from outside: the fleet knows no protocol."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol


class Conversation(Protocol):
    """One `Worker.Session` as it is open: messages in bytes, both ways."""

    ended: asyncio.Future[str]
    """Why no more come; an exception where what was told of one failed."""

    def send(self, message: bytes) -> None:
        """Behind those before it, as soon as the worker takes it; does not wait for that."""
        ...

    def close(self) -> None:
        """End it now. Does no harm at any time."""
        ...


Dial = Callable[[str, Callable[[bytes], None]], Awaitable[Conversation]]
"""Begin a session with the worker at an address (host:port); the function gets each message as it comes.

Raises OSError, with the reason.
"""
