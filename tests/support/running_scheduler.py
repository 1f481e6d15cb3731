"""A Scheduler that serves in the test's own event loop, on a cluster without Ray."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.support.fake_cluster import FakeCluster
from tests.support.ports import free_address

from polyfleet.scheduler.config import SchedulerConfig
from polyfleet.scheduler.scheduler import Scheduler
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.v1 import fleet_pb2_grpc

OWN = [("grpc.use_local_subchannel_pool", 1)]


@dataclass
class Running:
    """A scheduler that serves, its cluster, and a client."""

    scheduler: Scheduler
    cluster: FakeCluster
    address: str
    channel: grpc.aio.Channel
    fleet: Any

    async def snapshot(self) -> pb.FleetSnapshot:
        answer: pb.FleetSnapshot = await self.fleet.ListWorkers(pb.ListWorkersRequest())
        return answer

    async def until(self, condition: Callable[[pb.FleetSnapshot], Any]) -> pb.FleetSnapshot:
        """Poll until the fleet is so."""
        while not condition(snapshot := await self.snapshot()):
            await asyncio.sleep(0.01)
        return snapshot


async def start(folder: Path, cluster: FakeCluster | None = None, **settings: Any) -> Running:
    listen, metrics = free_address(), free_address()
    config = SchedulerConfig(**{"listen": listen, "metrics_listen": metrics, "state_dir": str(folder), **settings})
    cluster = cluster or FakeCluster()
    scheduler = Scheduler(config, cluster)
    await scheduler.start()
    channel = grpc.aio.insecure_channel(config.listen, options=OWN)
    return Running(scheduler, cluster, config.listen, channel, fleet_pb2_grpc.FleetStub(channel))


async def stop(running: Running) -> None:
    await running.channel.close(None)
    await running.scheduler.stop()


def states(snapshot: pb.FleetSnapshot) -> dict[str, str]:
    return {
        w.info.worker_id: pb.WorkerState.Name(w.status.state).removeprefix("WORKER_STATE_") for w in snapshot.workers
    }


async def refusal(call: Any) -> Any:
    """The error that a call ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value
