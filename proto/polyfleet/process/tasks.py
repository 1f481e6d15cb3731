"""Tasks that would run for ever, ended."""

import asyncio
from typing import Any

AGAIN_SECONDS = 1.0


async def end(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel tasks until they have ended; what they raise is let go.

    Once is not enough: before Python 3.12 `asyncio.wait_for` keeps a cancellation to itself when what it waits for
    comes at the same moment.
    """
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        done, pending = await asyncio.wait(pending, timeout=AGAIN_SECONDS)
        for task in done:
            if not task.cancelled():
                task.exception()
