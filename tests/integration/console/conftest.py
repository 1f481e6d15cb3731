"""A scheduler that serves, and a console that looks at it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.console_rig import ConsoleRig
from tests.support.running_scheduler import Running, start, stop
from tests.unit.process.test_process_fleet_keys import write


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    keys = write(tmp_path / "keys.yaml", {"id": "ops", "role": "operator"}, {"id": "team", "tenant": "a"})
    one = await start(tmp_path, keys_file=str(keys))
    yield one
    await stop(one)


@pytest.fixture
async def rig(running: Running) -> AsyncIterator[ConsoleRig]:
    async with ConsoleRig(fleet=running.address) as made:
        yield made
