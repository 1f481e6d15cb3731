"""Snapshots to whoever watches: the whole fleet at once, then after each change and as a heartbeat."""

import asyncio
from collections.abc import AsyncGenerator

from polyfleet.scheduler.registry import Registry
from polyfleet.v1 import fleet_pb2 as pb

SHORTEST_PAUSE_SECONDS = 0.05
HEARTBEAT_SECONDS = 2.0


class SnapshotFeed:
    """Streams a registry's snapshots. Nothing leaves it before `open()`: a young scheduler does not know the fleet."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._opened = asyncio.Event()
        self.watchers = 0

    def open(self) -> None:
        """The registry knows the fleet now."""
        self._opened.set()

    @property
    def is_open(self) -> bool:
        """Whether snapshots flow."""
        return self._opened.is_set()

    async def watch(self) -> AsyncGenerator[pb.FleetSnapshot, None]:
        """Snapshots without end: at most one every 50 ms, at least one every 2 s."""
        self.watchers += 1
        try:
            await self._opened.wait()
            while True:
                snapshot = self._registry.snapshot()
                yield snapshot
                await asyncio.sleep(SHORTEST_PAUSE_SECONDS)
                await self._registry.revision.wait(snapshot.version, HEARTBEAT_SECONDS - SHORTEST_PAUSE_SECONDS)
        finally:
            self.watchers -= 1
