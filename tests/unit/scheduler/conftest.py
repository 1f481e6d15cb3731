"""The Fleet service on a real port, with the controller on a cluster without Ray."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.running_scheduler import Running, start, stop


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    one = await start(tmp_path)
    yield one
    await stop(one)
