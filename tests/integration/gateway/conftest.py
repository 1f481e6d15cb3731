"""A gateway of a few places with one worker, for tests that need nothing particular of them."""

from collections.abc import AsyncIterator

import pytest
from tests.support.fake_worker import FakeWorker
from tests.support.gateway_rig import GatewayRig, text_worker


@pytest.fixture
async def rig() -> AsyncIterator[GatewayRig]:
    async with GatewayRig(max_queued=4, max_concurrent=2, queue_timeout=5) as rig:
        yield rig


@pytest.fixture
async def worker(rig: GatewayRig) -> FakeWorker:
    worker = text_worker("w-1")
    await rig.add(worker)
    return worker
